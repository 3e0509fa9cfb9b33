"""Seconds to an explanation, with conflict and repairs: `python -m benchmarks.explain`.

The answer comes first: the verdict with its reason, and the plan to run or the nearest
one that fits. Tables about other plans, training and hardware follow.

Each plan is explained in this process, after one run that is not counted; where there
is none, the spec is, with all that other degrees and more of something would bring.
Targets are for the CPU seconds of two ordinary cores.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import meshwright as mw
from benchmarks import without_options
from benchmarks.timing import Times, peak_mib, timed
from meshwright.explanations.explain import ANSWERED
from meshwright.results.explanation import Explanation

RUNS = 3

CORNERS = Path(__file__).parent / "corners"

WIDE = str(CORNERS / "deepseek-v3-2048xh100.yaml")
"""36 million legal skeletons."""

WIDEST = str(CORNERS / "deepseek-v3-16384xh100.yaml")


class Case(NamedTuple):
    """A plan on a spec, and how long its explanation may take."""

    spec: str
    plan: str
    """Empty where the spec itself is explained."""
    target_s: float
    """CPU seconds."""
    first_target_s: float = 1.5
    """CPU seconds to the answer, without tables."""


CASES = (
    Case("llama3-8b-2x4090-pcie", "tp=2,zero=0", 1.5),
    Case("llama3-70b-128xa100", "tp=1,pp=2,zero=0,micro_batch=4", 1.5),
    Case("gpt3-175b-1024xa100", "tp=1,pp=2,zero=0", 1.5),
    Case("gpt3-175b-1024xa100", "tp=8,pp=4,zero=0,micro_batch=2,recompute=none", 1.5),
    Case("gpt3-175b-1024xa100", "", 2.5),
    Case(WIDE, "", 8.0, 5.0),
    Case(WIDE, "tp=1,pp=1,ep=1,zero=0,micro_batch=1", 20.0, 5.0),
    Case(WIDEST, "tp=2,pp=32,ep=8,zero=1,micro_batch=1", 10.0, 5.0),
)


def main() -> None:
    """Measure and print."""
    table = Table(title=f"Seconds to an explanation, median of {RUNS}")
    for name in ("spec", "plan", "verdict", "conflict", "repairs"):
        table.add_column(name, overflow="fold")
    for name in ("wall s", "first CPU s", "target", "CPU s", "target", "peak MiB"):
        table.add_column(name, justify="right")
    for case in CASES:
        told, first_s, times = explained(case)
        rules = told.conflict.rules if told.conflict else ()
        table.add_row(
            Path(case.spec).stem,
            case.plan or "none",
            told.status,
            " + ".join(rule.rule for rule in rules),
            str(len(told.repairs)),
            f"{times.wall_s:.2f}",
            f"{first_s:.2f}",
            f"{case.first_target_s:.1f}",
            f"{times.cpu_s:.2f}",
            f"{case.target_s:.1f}",
            f"{peak_mib():,.0f}",
        )
    Console(width=140).print(table)


def explained(case: Case) -> tuple[Explanation, float, Times]:
    """Return the explanation of a case, and CPU seconds to the answer and to all."""
    spec, firsts = mw.load(case.spec, mw.Spec), list[float]()

    def explain() -> Explanation:
        start_s = time.process_time()

        def say(text: str) -> None:
            if text == ANSWERED:
                firsts.append(time.process_time() - start_s)

        return mw.explain(spec, case.plan or None, on_progress=say)

    told, times = timed(explain, RUNS)
    return told, median(firsts[-RUNS:]), times


if __name__ == "__main__":
    without_options(__doc__)
    main()
