"""The ledger of collectives as tables."""

from __future__ import annotations

from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.ledger import Entry, Ledger, StageLedger

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
    """Return a table for every kind of stage."""
    if not ledger.stages:
        return [Lines("Collectives", ("There is no complete plan to tell of.",))]
    return [_table(own) for own in ledger.stages]


def _table(own: StageLedger) -> Table:
    stages = ", ".join(str(stage) for stage in own.stages)
    title = (
        f"Collectives of a GPU of stage {stages}: each once per block and micro-batch, "
        "or step; calls and seconds of a step"
    )
    return Table(title, HEADING, tuple(_row(entry) for entry in own.entries))


def _row(own: Entry) -> tuple[str, ...]:
    hidden = own.exposed_s < own.seconds * (1 - 1e-9)
    exposed = f"{own.exposed_s / own.seconds:.0%}" if hidden else "all"
    return (
        f"{own.block}: {own.where}",
        own.phase,
        own.operation.replace("_", "-"),
        f"{own.group} x {own.ranks}",
        f"{own.bytes / 1e6:,.3g}",
        f"{own.count_per_step:,}",
        own.link,
        seconds_text(own.seconds),
        exposed,
    )
