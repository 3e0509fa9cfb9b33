"""Draws the README's picture from a real solve: `python -m benchmarks.picture`."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from benchmarks import without_options
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import load_profile
from meshwright.loading.load import load_spec
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.report.screen import full_sections
from meshwright.report.tables import WIDTH, sections_as_text

SPEC = "llama3-8b-2xh100-nvlink"
TARGET = Path(__file__).parents[1] / "docs" / "solve.svg"


def main() -> None:
    """Solve the spec and write its answer as an SVG."""
    spec = load_spec(SPEC)
    options = Options(
        tolerance=spec.objective.tolerance,
        is_by_kind=True,
        profile=load_profile(DEFAULT_PROFILE),
    )
    text = sections_as_text(full_sections(solve(spec, options)))
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(text, highlight=False, markup=False)
    svg = console.export_svg(title=f"meshwright solve {SPEC}", unique_id="solve")
    # The picture must not fetch fonts: any monospaced one will do.
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)
    TARGET.write_text(svg.replace("Fira Code, ", "").replace("Fira Code", "monospace"))


if __name__ == "__main__":
    without_options(__doc__)
    main()
