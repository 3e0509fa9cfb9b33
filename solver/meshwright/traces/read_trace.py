"""Reads a trace in the Trace Event format: of PyTorch (Kineto) or of Meshwright."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.reading.guard import read_bytes

MOST_BYTES = 1 << 30
"""Longest trace that is read, unpacked."""

MOST_US = 1e18
"""Latest time of an event: thirty thousand years."""

EXPECTED = "a trace: JSON with traceEvents, as torch.profiler writes it"


class Slice(NamedTuple):
    """One event with a duration, seconds."""

    name: str
    category: str
    thread: tuple[str, str]
    start_s: float
    end_s: float
    about: dict[str, Any]


class Trace(NamedTuple):
    """The events of a trace that have a duration, and what it says about itself."""

    slices: list[Slice]
    about: dict[str, Any]
    """The plan, as Meshwright writes it; empty in traces of others."""


def read_trace(path: Path) -> Trace:
    """Return the slices of a trace.

    Raises:
        SpecError: the file cannot be read, or is no trace.
    """
    document = _document(path)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise SpecError(f"{printable(str(path))}: no traceEvents; expected {EXPECTED}")
    about = document.get("otherData") if isinstance(document, dict) else None
    slices = [found for event in events if (found := _slice(event)) is not None]
    if not slices:
        told = "no event has a duration"
        raise SpecError(f"{printable(str(path))}: {told}; expected {EXPECTED}")
    return Trace(slices, about if isinstance(about, dict) else {})


def _document(path: Path) -> Any:
    content = _content(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        where = printable(str(path))
        raise SpecError(f"{where}: no JSON; expected {EXPECTED}") from None


def _content(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is an archive of gzip."""
    if path.suffix != ".gz":
        return read_bytes(path, MOST_BYTES, EXPECTED)
    where = printable(str(path))
    try:
        with gzip.open(path) as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = (getattr(error, "strerror", None) or "no archive of gzip").lower()
        raise SpecError(f"{where}: {reason}") from None
    if len(content) > MOST_BYTES:
        raise SpecError(f"{where}: expected at most {MOST_BYTES:,} bytes")
    return content


def _slice(event: Any) -> Slice | None:
    """Return an event with a duration; None for other events."""
    if not isinstance(event, dict) or event.get("ph") != "X":
        return None
    start, duration = _time(event.get("ts")), _time(event.get("dur", 0))
    if start is None or duration is None or duration < 0:
        return None
    about = event.get("args")
    return Slice(
        name=str(event.get("name", "")),
        category=str(event.get("cat", "")),
        thread=(str(event.get("pid", "")), str(event.get("tid", ""))),
        start_s=start / 1e6,
        end_s=(start + duration) / 1e6,
        about=about if isinstance(about, dict) else {},
    )


def _time(value: Any) -> float | None:
    """Return microseconds of a trace; None for a value that is no number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < MOST_US else None
