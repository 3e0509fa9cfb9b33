"""Seconds to an explanation, with conflict and repairs: `python -m benchmarks.explain`.

Each plan is explained in this process, after one run that is not counted; where there
is none, the spec is, with all that other degrees and more of something would bring.
Targets are for the CPU seconds of two ordinary cores.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import meshwright as mw
from benchmarks.timing import Times, peak_mib, timed
from meshwright.explanations.explain import Explainer
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.results.explanation import Explanation

RUNS = 3

CORNERS = Path(__file__).parent / "corners"


class Case(NamedTuple):
    """A plan on a spec, and how long its explanation may take."""

    spec: str
    plan: str
    """Empty where the spec itself is explained."""
    target_s: float
    """CPU seconds."""


CASES = (
    Case("llama3-8b-2x4090-pcie", "tp=2,zero=0", 1.5),
    Case("llama3-70b-128xa100", "tp=1,pp=2,zero=0,micro_batch=4", 1.5),
    Case("gpt3-175b-1024xa100", "tp=1,pp=2,zero=0", 1.5),
    Case("gpt3-175b-1024xa100", "tp=8,pp=4,zero=0,micro_batch=2,recompute=none", 1.5),
    Case("gpt3-175b-1024xa100", "", 2.0),
    Case(str(CORNERS / "deepseek-v3-2048xh100.yaml"), "", 5.0),
)


def main() -> None:
    """Measure and print."""
    table = Table(title=f"Seconds to an explanation, median of {RUNS}")
    for name in ("spec", "plan", "verdict", "conflict", "repairs"):
        table.add_column(name, overflow="fold")
    for name in ("wall s", "CPU s", "target", "ratio", "peak MiB"):
        table.add_column(name, justify="right")
    for case in CASES:
        told, times = explained(case)
        rules = told.conflict.rules if told.conflict else ()
        table.add_row(
            Path(case.spec).stem,
            case.plan or "none",
            told.status,
            " + ".join(rule.rule for rule in rules),
            str(len(told.repairs)),
            f"{times.wall_s:.2f}",
            f"{times.cpu_s:.2f}",
            f"{case.target_s:.1f}",
            f"{times.cpu_s / case.target_s:.2f}",
            f"{peak_mib():,.0f}",
        )
    Console(width=140).print(table)


def explained(case: Case) -> tuple[Explanation, Times]:
    """Return the explanation of a case, and how long it takes."""
    spec, explainer = mw.load(case.spec, mw.Spec), Explainer(Options())
    if case.plan:
        return timed(partial(explainer.plan, spec, read_plan(case.plan)), RUNS)
    return timed(partial(explainer.spec, spec), RUNS)


if __name__ == "__main__":
    main()
