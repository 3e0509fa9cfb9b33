"""Seconds to a verdict with conflict and repairs: `python -m benchmarks.explain`.

Each plan is explained in this process, after one run that is not counted. Targets are
for two ordinary cores.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.timing import timed
from meshwright.explain.explain import Explainer
from meshwright.options import Options
from meshwright.spec.load import load_spec
from meshwright.spec.plan_text import read_plan

RUNS = 3


class Case(NamedTuple):
    """A plan on a spec, and how long its explanation may take."""

    spec: str
    plan: str
    target_s: float


CASES = (
    Case("llama3-8b-2x4090-pcie", "tp=2,zero=0", 1.5),
    Case("llama3-70b-128xa100", "tp=1,pp=2,zero=0,micro_batch=4", 1.5),
    Case("gpt3-175b-1024xa100", "tp=1,pp=2,zero=0", 1.5),
    Case("gpt3-175b-1024xa100", "tp=8,pp=4,zero=0,micro_batch=2,recompute=none", 1.5),
)


def main() -> None:
    """Measure and print."""
    table = Table(title=f"Seconds to an explanation, median of {RUNS}")
    for name in ("spec", "plan", "verdict", "conflict", "repairs"):
        table.add_column(name, overflow="fold")
    for name in ("seconds", "target", "ratio"):
        table.add_column(name, justify="right")
    for case in CASES:
        spec, plan = load_spec(case.spec), read_plan(case.plan)
        told, seconds = timed(partial(Explainer(Options()).plan, spec, plan), RUNS)
        rules = told.conflict.rules if told.conflict else ()
        table.add_row(
            case.spec,
            case.plan,
            told.status,
            " + ".join(rule.rule for rule in rules),
            str(len(told.repairs)),
            f"{seconds:.2f}",
            f"{case.target_s:.1f}",
            f"{seconds / case.target_s:.2f}",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
