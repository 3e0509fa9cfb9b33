"""A snapshot of PyTorch's allocator, written as JSON: what it held, and what failed.

`torch.cuda.memory._snapshot()` returns a dictionary of segments, which are reserved
memory, and of traces, which are what the allocator did (torch/cuda/memory.py at
00b65a04, `_snapshot`). Its pickled form is never read: a pickle runs code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from meshwright.imports.launches.launch import Launch
from meshwright.imports.logs.out_of_memory import MOST_FRAMES, frame_text, phase_of
from meshwright.imports.logs.training_log import (
    OutOfMemory,
    Peak,
    TrainingLog,
    missing,
)
from meshwright.imports.registry import MOST_OF_LOG, TrainingLogImporter
from meshwright.imports.text import fail
from meshwright.spec.units import GIB

MOST_BYTES = 2**50
"""Most bytes that a number of a snapshot may mean."""

MOST_DEVICES = 1_000
"""GPUs whose memory is kept."""

CHANGES = {"alloc": (1, 0), "free_completed": (-1, 0)} | {
    f"segment_{verb}": (0, sign)
    for verb, sign in (("alloc", 1), ("map", 1), ("free", -1), ("unmap", -1))
}
"""By action: how its size changes what is allocated, and what is reserved."""


class Held(NamedTuple):
    """Bytes on one GPU."""

    allocated: int
    reserved: int


def parse(text: str, name: str) -> TrainingLog:
    """Return what a snapshot tells: memory at its peak, and the allocation that failed.

    Raises:
        SpecError: the text is too long, no snapshot, or tells nothing of a run.
    """
    if len(text) > MOST_OF_LOG:
        fail(
            name, 0, f"expected at most {MOST_OF_LOG:,} characters; keep fewer entries"
        )
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        fail(name, 0, "expected torch.cuda.memory._snapshot() as JSON, not cut off")
    held = _held(data)
    traces = [*map(_dicts, _listed(data.get("device_traces")))][:MOST_DEVICES]
    failed = None
    peaks = dict(held)
    for gpu, trace in enumerate(traces):
        for entry, now in _back(trace, held.get(gpu, Held(0, 0))):
            before = peaks.get(gpu, now)
            peaks[gpu] = Held(*map(max, before, now))
            if entry.get("action") == "oom":
                failed = _failed(entry, now, gpu)  # the first one is met last
    launch = Launch("torch_snapshot", "PyTorch's memory snapshot", "", name)
    return TrainingLog(
        "torch_snapshot",
        launch.title,
        launch,
        peaks=tuple(
            Peak(gpu, one.allocated / GIB, one.reserved / GIB)
            for gpu, one in sorted(peaks.items())
            if one.reserved > 0
        ),
        out_of_memory=failed,
        unknown=missing(launch),
    ).checked()


def _held(data: dict[str, Any]) -> dict[int, Held]:
    """Return what every GPU holds when the snapshot is taken."""
    found: dict[int, Held] = {}
    for segment in _dicts(data.get("segments")):
        gpu = _number(segment.get("device"))
        before = found.get(gpu, Held(0, 0))
        if gpu < MOST_DEVICES:
            found[gpu] = Held(
                before.allocated + _number(segment.get("allocated_size")),
                before.reserved + _number(segment.get("total_size")),
            )
    return found


def _back(
    trace: list[dict[str, Any]], held: Held
) -> Iterator[tuple[dict[str, Any], Held]]:
    """Yield the entries of a trace, the last first, and what was held at each."""
    for entry in reversed(trace):
        yield entry, held
        action, size = entry.get("action"), _number(entry.get("size"))
        tensors, segments = CHANGES.get(str(action), (0, 0))
        held = Held(
            max(held.allocated - tensors * size, 0),
            max(held.reserved - segments * size, 0),
        )


def _failed(entry: dict[str, Any], held: Held, gpu: int) -> OutOfMemory | None:
    """Return the allocation that failed; None where its size is none."""
    size = _number(entry.get("size"))
    frames = tuple(
        frame_text(str(one["filename"])[:300], one.get("line"), str(one.get("name")))
        for one in _dicts(entry.get("frames"))
        if str(one.get("filename")).endswith(".py")
    )[:MOST_FRAMES][::-1]
    if not size:
        return None
    return OutOfMemory(
        line=1,
        tried_gib=size / GIB,
        free_gib=_number(entry.get("device_free")) / GIB,
        allocated_gib=held.allocated / GIB,
        unallocated_gib=max(held.reserved - held.allocated, 0) / GIB,
        gpu=gpu,
        phase=phase_of(frames),
        frames=frames,
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in _listed(value) if isinstance(one, dict)]


def _number(value: Any) -> int:
    """Return a count of bytes; 0 for what is none."""
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value <= MOST_BYTES else 0


IMPORTERS = {
    "torch_snapshot": TrainingLogImporter(
        sign=r"\A\ufeff?\s{0,200}\{\s{0,200}\""
        r"(?:segments|device_traces|allocator_settings|external_annotations)\"\s{0,9}:",
        parse=parse,
    ),
}
