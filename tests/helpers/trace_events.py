"""What the Trace Event format asks of a file, checked event by event.

From its description (Google, "Trace Event Format"): complete events (X) have a time and
a duration, counters (C) numbers, metadata (M) a name; times are microseconds. Slices of
a thread are nested or apart, or a viewer drops some.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

METADATA = {
    "process_name",
    "process_sort_index",
    "thread_name",
    "thread_sort_index",
}

TICK_US = 1e-3
"""A nanosecond: what viewers round times to."""


def validate(trace: dict[str, Any]) -> None:
    """Fail if a trace is not what viewers read."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    for event in trace["traceEvents"]:
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in METADATA
            assert event["args"]
        elif event["ph"] == "C":
            assert event["ts"] >= 0
            assert all(isinstance(v, float) and v >= 0 for v in event["args"].values())
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            span = event["ts"], event["ts"] + event["dur"]
            threads[event["pid"], event["tid"]].append(span)
    for spans in threads.values():
        for before, after in pairwise(sorted(spans)):
            assert after[0] >= before[1] - TICK_US


def seconds_by_part(trace: dict[str, Any], stage: int) -> dict[str, float]:
    """Return the seconds of a stage's slices by category."""
    found: dict[str, float] = defaultdict(float)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == stage:
            found[event["cat"]] += event["dur"] / 1e6
    return found


def end_s(trace: dict[str, Any]) -> float:
    """Return when the last slice ends."""
    slices = (event for event in trace["traceEvents"] if event["ph"] == "X")
    return float(max(event["ts"] + event["dur"] for event in slices)) / 1e6
