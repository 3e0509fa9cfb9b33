"""How far predictions of serving lie off: `python -m benchmarks.serving`.

The engine's numbers are fitted to these throughputs; `python -m benchmarks.serving.fit`
judges every source by a fit to the others. First tokens are fitted by nothing.
"""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from benchmarks import without_options
from benchmarks.serving.by_source import by_source
from benchmarks.serving.rows import Row, errors, rows
from meshwright.serving.deployment import Engine


def main() -> None:
    """Predict and print."""
    found = sorted(rows(), key=lambda row: row.metric == "ttft_ms")
    console = Console(width=110)
    console.print(_each(found))
    columns = {"": errors(found, Engine())}
    console.print(by_source("Within 20 %, by source", found, columns))


def _each(found: list[Row]) -> Table:
    table = Table(title="Serving, as measured and as predicted")
    for name in ("source", "model", "precision", "tp", "batch", "prompt", "output"):
        table.add_column(name)
    for name in ("metric", "measured", "predicted", "error"):
        table.add_column(name, justify="right")
    for row in found:
        result, predicted = row.spec.inference, row.predicted(Engine())
        shape = (row.plan.tp, result.batch, result.prompt_len, result.output_len)
        table.add_row(
            row.source,
            row.spec.model.name,
            result.precision,
            *map(str, shape),
            row.metric,
            f"{row.measured:,.4g}",
            f"{predicted:,.4g}",
            f"{math.expm1(row.error(Engine())):+.0%}",
        )
    return table


if __name__ == "__main__":
    without_options(__doc__)
    main()
