"""What the order of GPUs costs to find, and wins: `python -m benchmarks.placement`.

Each case is solved to a proven optimum in this process on one worker, after one run
that is not counted. The win is the least that any plan takes with ranks on the GPUs as
they are listed, over the best step in any order. Targets are for two ordinary cores.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table

import meshwright as mw
from benchmarks import without_options
from benchmarks.timing import timed
from meshwright.cost.job import make_job
from meshwright.planner.degrees import MeshTable
from meshwright.planner.integer_costs import seconds
from meshwright.planner.narrow import prune
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import solve
from meshwright.spec.spec import Spec

RUNS = 3

SPECS = Path(__file__).parent / "irregular"


class Case(NamedTuple):
    """A spec, what it is about, and how long its proof may take."""

    spec: str
    about: str
    target_s: float


CASES = (
    Case("gpt-1.3b-dgx-1v", "cube mesh, as it is", 0.5),
    Case("gpt-1.3b-dgx-1v-tp8", "cube mesh, tp 8", 0.5),
    Case("gpt-1.3b-16xa6000", "16 slots, scrambled bridges", 5.0),
    Case("gpt-1.3b-16xa6000-tp2", "the same, tp 2", 5.0),
    Case("llama3-70b-512xa100-nvlink", "64 nodes, one slow NVLink", 10.0),
    Case("llama3-70b-512xa100-nic", "64 nodes, one slow NIC", 10.0),
    Case("llama3-405b-4096xh100", "512 nodes of three kinds", 20.0),
)


class AsListed(MeshTable):
    """Meshes with every rank on the GPU of its number."""

    @property
    def has_choice(self) -> bool:
        """Return that there is none."""
        return False


def listed_s(spec: Spec) -> float:
    """Return the least bound of plans with ranks as GPUs are listed, s."""
    job = make_job(spec)
    lattice = replace(build_lattice(job), table=AsListed(job))
    found = prune(job, lattice).candidates
    return seconds(float(found.lower[found.fits].min()))


def main() -> None:
    """Measure and print."""
    table = Table(title=f"Seconds to a proven order of GPUs, median of {RUNS}")
    left = ("case", "about", "status")
    for heading in (*left, "GPUs", "step", "win >=", "gap", "CPU s", "target", "ratio"):
        justify: Literal["left", "right"] = "left" if heading in left else "right"
        table.add_column(heading, justify=justify)
    for name, about, target_s in CASES:
        spec = mw.load(str(SPECS / f"{name}.yaml"), mw.Spec)
        outcome, times = timed(partial(solve, spec), RUNS)
        if outcome.best is None or outcome.certificate is None:
            raise SystemExit(f"{name}: {outcome.status}")
        step_s = outcome.best.step_s
        table.add_row(
            name,
            about,
            outcome.status,
            f"{outcome.gpus:,}",
            f"{step_s:.3f}",
            f"{listed_s(spec) / step_s:.3f}",
            f"{outcome.certificate.gap:.1%}",
            f"{times.cpu_s:.2f}",
            f"{target_s:.1f}",
            f"{times.cpu_s / target_s:.2f}",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    without_options(__doc__)
    main()
