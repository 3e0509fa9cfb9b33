"""What leaving the number of machines open costs: `python -m benchmarks.open_counts`.

Each spec leaves 1 to 64 machines open. It is solved once so, and once with the number
that was chosen, both with all that `meshwright solve` tells; CPU seconds on one worker,
after one run that is not counted. The target is at most three times the fixed solve.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import without_options
from benchmarks.timing import timed

RUNS = 3

TARGET = 3.0

COUNT = {"min": 1, "max": 64}

DENSE: dict[str, Any] = {
    "model": "llama3-70b",
    "cluster": {"topology": "dgx-a100", "count": COUNT},
    "training": {"seq_len": 4096, "global_batch": 512},
    "run": {"gpu_hour_price": 2, "tokens": 2e12},
}
DAYS = [{"that": "train_days <= 120"}]

CASES: dict[str, dict[str, Any]] = {
    "fastest": {**DENSE, "objective": "step_s"},
    "smallest that holds it": {**DENSE, "objective": ["gpus", "step_s"]},
    "cheapest": {**DENSE, "objective": "usd_per_mtoken"},
    "cheapest within 120 days": {
        **DENSE,
        "objective": "usd_per_mtoken",
        "rules": DAYS,
    },
}


def main() -> None:
    """Measure and print."""
    import meshwright as mw

    table = Table(title=f"llama3-70b on 1 to 64 dgx-a100, median of {RUNS}")
    for heading in ("best is the", "count", "solved", "bounded", "none fits"):
        table.add_column(heading, justify="right")
    for heading in ("open CPU s", "fixed CPU s", "times", "target"):
        table.add_column(heading, justify="right")
    for name, data in CASES.items():
        question = mw.load(data)
        assert isinstance(question, mw.OpenSpec)
        outcome = mw.solve(question)
        assert outcome.open is not None
        assert outcome.open.chosen is not None
        fixed = question.choices[outcome.open.chosen.number]
        open_s = timed(partial(mw.solve, question), RUNS)[1].cpu_s
        fixed_s = timed(partial(mw.solve, fixed), RUNS)[1].cpu_s
        closed = outcome.open.closed
        numbers = (closed.solved, closed.bounded, closed.none_fits)
        table.add_row(
            name,
            str(fixed.cluster.count),
            *map(str, numbers),
            f"{open_s:.2f}",
            f"{fixed_s:.2f}",
            f"{open_s / fixed_s:.1f}",
            f"{TARGET:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    without_options(__doc__)
    main()
