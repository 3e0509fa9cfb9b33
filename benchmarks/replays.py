"""The answer, the fastest plan and the usual one: `python -m benchmarks.replays`.

Each question in `replays.yaml` once had an answer unlike what teams run. The table puts
the three plans side by side, with step times over that of the fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

import meshwright as mw
from benchmarks import without_options
from meshwright.explanations.decisions import with_pins
from meshwright.loading.plan_text import read_plan
from meshwright.plans.plan import Plan
from meshwright.results.priced_plan import PricedPlan

QUESTIONS = Path(__file__).parent / "replays.yaml"

SHOWN = ("tp", "pp", "vpp", "cp", "ep", "dp_shard", "zero", "micro_batch", "offload")
"""Fields of a plan that the table shows where they say something."""

PLAIN = (1, "none", None)


def main() -> None:
    """Solve and print."""
    table = Table(title="Step time over the fastest plan's")
    for heading in ("question", "plan", "degrees and techniques", "step s", "x"):
        right = heading in ("step s", "x")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    reasons = []
    for question in yaml.safe_load(QUESTIONS.read_text(encoding="utf-8")):
        for row in rows(question):
            table.add_row(*row)
        reasons.append(f"{question['question']}: {question['because']}")
    console = Console(width=130)
    console.print(table)
    console.print("\n".join(reasons), markup=False, soft_wrap=True)


def rows(question: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the answered, the fastest and the usual plan of a question."""
    spec = loaded(question["spec"])
    answer = mw.solve(spec, by_kind=False)
    usual = mw.solve(
        with_pins(spec, read_plan(question["usual"])), by_kind=False, fastest=True
    )
    plans = {"answer": answer.best, "fastest": answer.optimum, "usual": usual.best}
    least_s = answer.optimum.step_s if answer.optimum else float("nan")
    for name, found in plans.items():
        title = question["question"] if name == "answer" else ""
        yield title, name, *cells(found, least_s)


def cells(found: PricedPlan | None, least_s: float) -> tuple[str, str, str]:
    """Return the plan, the step time and its ratio; what is said where none fits."""
    if found is None:
        return "does not fit, or is not legal", "", ""
    return degrees(found.plan), f"{found.step_s:.2f}", f"{found.step_s / least_s:.3f}"


def degrees(plan: Plan) -> str:
    """Return what a plan does beyond doing nothing."""
    values = {name: getattr(plan, name) for name in (*SHOWN, "recompute")}
    return " ".join(f"{k}={v}" for k, v in values.items() if v not in PLAIN)


def loaded(spec: dict[str, Any]) -> mw.Spec:
    """Return a spec that stands in the list of questions."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "question.yaml"
        path.write_text(yaml.safe_dump(spec), encoding="utf-8")
        return mw.load(path, mw.Spec)


if __name__ == "__main__":
    without_options(__doc__)
    main()
