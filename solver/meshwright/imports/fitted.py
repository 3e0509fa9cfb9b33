"""Logs of nccl-tests put on a topology, and how well it then foretells them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import SpecError
from meshwright.imports.link_fit import LARGE_BYTES, LinkFit, fit_log
from meshwright.imports.link_levels import apply, price
from meshwright.imports.nccl_tests import NcclLog, parse
from meshwright.imports.reading import read_text
from meshwright.report.tables import Table

UNITS = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB"}


def fit_files(
    fields: dict[str, Any], paths: Sequence[Path], op: str, ranks: int
) -> tuple[dict[str, Any], tuple[str, ...], list[Table]]:
    """Return a topology with what logs measured, what it replaced, and a table of each.

    Raises:
        SpecError: a log is not understood, or its ranks do not lie on the levels.
    """
    logs = [parse(read_text(path), str(path), op, ranks) for path in paths]
    fits = [fit_log(log) for log in logs]
    try:
        fitted, notes = apply(fields, fits)
    except SpecError as error:
        raise SpecError(f"--onto {fields.get('name', 'topology')}: {error}") from None
    told = [f"{log.name}: {note}" for log in logs for note in log.notes]
    tables = [_table(fitted, *pair) for pair in zip(logs, fits, strict=True)]
    return fitted, (*told, *notes), tables


def _table(fields: dict[str, Any], log: NcclLog, fit: LinkFit) -> Table:
    sizes = np.array([float(row.size_bytes) for row in log.timed])
    logged_us = np.array([row.time_s * 1e6 for row in log.timed])
    predicted_us = price(fields, fit, sizes) * 1e6
    errors = predicted_us / logged_us - 1
    cells = zip(sizes, logged_us, predicted_us, errors, strict=True)
    rows = [
        (_size(int(size)), f"{logged:,.1f}", f"{predicted:,.1f}", f"{error:+.1%}")
        for size, logged, predicted, error in cells
    ]
    title = f"{log.name}: {log.op} over {log.ranks} GPUs, {_medians(sizes, errors)}"
    return Table(title, ("message", "logged us", "predicted us", "error"), tuple(rows))


def _medians(sizes: np.ndarray, errors: np.ndarray) -> str:
    """Return the median errors above and below 1 MiB, where there are sizes."""
    parts = {"from 1 MiB on": sizes >= LARGE_BYTES, "below": sizes < LARGE_BYTES}
    told = [
        f"{np.median(np.abs(errors[own])):.1%} {words}"
        for words, own in parts.items()
        if own.any()
    ]
    return "median error " + ", ".join(told)


def _size(size_bytes: int) -> str:
    for unit, name in UNITS.items():
        if size_bytes % unit == 0:
            return f"{size_bytes // unit:,} {name}"
    return f"{size_bytes:,} B"
