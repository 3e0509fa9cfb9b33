"""The ledger of collectives as tables."""

from __future__ import annotations

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.comparison import Ledger, LedgerEntry, StageLedger

HEADING = (
    "where",
    "phase",
    "operation",
    "group",
    "MB",
    "calls",
    "link",
    "seconds",
    "exposed",
)


def ledger_sections(ledger: Ledger) -> list[Section]:
    """Return a table for every group of stages with the same collectives."""
    if not ledger.stages:
        return [Lines("Collectives", ("There is no complete plan to tell of.",))]
    return [_table(stages) for stages in ledger.stages]


def _table(ledger: StageLedger) -> Table:
    stages = ", ".join(str(stage) for stage in ledger.stages)
    title = (
        f"Collectives of a GPU of stage {stages}: each once per block and micro-batch, "
        "or step; calls and seconds of a step"
    )
    return Table(title, HEADING, tuple(_row(entry) for entry in ledger.entries))


def _row(entry: LedgerEntry) -> tuple[str, ...]:
    is_hidden = entry.exposed_s < entry.seconds * (1 - 1e-9)
    exposed = f"{entry.exposed_s / entry.seconds:.0%}" if is_hidden else "all"
    return (
        f"{entry.block}: {entry.where}",
        entry.phase,
        entry.operation.replace("_", "-"),
        f"{entry.group} x {entry.ranks}",
        f"{entry.bytes / 1e6:,.3g}",
        f"{entry.count_per_step:,}",
        entry.link,
        seconds_text(entry.seconds),
        exposed,
    )
