"""Fits a topology to logs of nccl-tests, and compares its predictions with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.evidence.link_fit import LARGE_BYTES, LinkFit, fit_log, predicted_s
from meshwright.evidence.link_graph import apply_to_nodes, price_on_nodes
from meshwright.evidence.link_levels import apply, price
from meshwright.imports.logs.nccl_tests import NcclLog
from meshwright.imports.read_import import read_facts
from meshwright.plans.columns import Floats
from meshwright.reading.document import Document, Where
from meshwright.reading.messages import explain
from meshwright.report.tables import Table
from meshwright.spec.topology import Topology

HUGE_BYTES = 2.0**40
"""Size of a message whose latency is negligible."""

SLOWER = 1.05
"""Ratio of times from which on a topology is said to be slower than a log."""

UNITS = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB"}


def fit_files(
    fields: dict[str, Any],
    topology: Topology,
    kind: str,
    paths: Sequence[Path],
    op: str,
    ranks: int,
) -> tuple[dict[str, Any], tuple[str, ...], list[Table]]:
    """Return a topology fitted to logs, notes on replaced values, and a table per log.

    Raises:
        SpecError: a log is not understood, or its ranks do not lie on the levels.
    """
    logs: list[NcclLog] = [read_facts(kind, path, op, ranks) for path in paths]
    fits = [fit_log(log) for log in logs]
    try:
        if topology.nodes:
            fitted, notes = apply_to_nodes(fields, topology, fits)
        else:
            fitted, notes = apply(fields, fits)
    except SpecError as error:
        raise SpecError(f"--onto {topology.name}: {error}") from None
    told = [f"{log.name}: {note}" for log in logs for note in log.notes]
    result = _fitted_topology(fitted, topology, paths)
    tables = [_table(result, *pair) for pair in zip(logs, fits, strict=True)]
    slower = [note for fit in fits for note in _slower(result, fit)]
    return fitted, (*told, *notes, *slower), tables


def _fitted_topology(
    fields: dict[str, Any], topology: Topology, paths: Sequence[Path]
) -> Topology:
    """Return a topology with fits on its links.

    Raises:
        SpecError: the rate of a log is out of range for links.
    """
    try:
        return Topology.model_validate({**fields, "gpu": topology.gpu})
    except ValidationError as error:
        place = Where(f"--onto {topology.name}, fitted to {paths[0]}")
        document = Document(fields, {(): place})
        raise SpecError(explain(document, error, Topology)) from None


def _price(topology: Topology, fit: LinkFit, sizes: Floats) -> Floats:
    if topology.nodes:
        return price_on_nodes(topology, fit, sizes)
    return price(topology.model_dump(), fit, sizes)


def _slower(topology: Topology, fit: LinkFit) -> Iterator[str]:
    """Yield a note where links inside a machine of nodes are slower than the log."""
    huge = np.array([HUGE_BYTES])
    times = float(_price(topology, fit, huge)[0]) / predicted_s(fit, HUGE_BYTES)
    if topology.nodes and times > SLOWER:
        yield (
            f"{topology.name}: links inside let less through than {fit.name} has; "
            f"large messages are predicted {times:.1f} times as slow."
        )


def _table(topology: Topology, log: NcclLog, fit: LinkFit) -> Table:
    sizes = np.array([float(row.size_bytes) for row in log.timed])
    logged_us = np.array([row.time_s * 1e6 for row in log.timed])
    predicted_us = _price(topology, fit, sizes) * 1e6
    errors = predicted_us / logged_us - 1
    cells = zip(sizes, logged_us, predicted_us, errors, strict=True)
    rows = [
        (_size(int(size)), f"{logged:,.1f}", f"{predicted:,.1f}", f"{error:+.1%}")
        for size, logged, predicted, error in cells
    ]
    title = f"{log.name}: {log.op} over {log.ranks} GPUs, {_medians(sizes, errors)}"
    return Table(title, ("message", "logged us", "predicted us", "error"), tuple(rows))


def _medians(sizes: Floats, errors: Floats) -> str:
    """Return the median errors above and below 1 MiB, where there are sizes."""
    parts = {"from 1 MiB on": sizes >= LARGE_BYTES, "below": sizes < LARGE_BYTES}
    told = [
        f"{np.median(np.abs(errors[are_in_part])):.1%} {words}"
        for words, are_in_part in parts.items()
        if are_in_part.any()
    ]
    return "median error " + ", ".join(told)


def _size(size_bytes: int) -> str:
    for unit, name in UNITS.items():
        if size_bytes % unit == 0:
            return f"{size_bytes // unit:,} {name}"
    return f"{size_bytes:,} B"
