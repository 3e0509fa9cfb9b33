"""What a profiler's trace shows of the work of one GPU, or of a CPU in its place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from meshwright.plans.columns import Floats
from meshwright.traces.intervals import NONE, merged
from meshwright.traces.kinds import Kind, kind_of
from meshwright.traces.read_trace import Slice

ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Categories of what runs on a GPU (Kineto, `ActivityType`)."""

ON_CPU = "cpu_op"

STEP = "ProfilerStep#"
"""The annotation of a step, by `torch.profiler`'s `step`."""

OPTIMIZER = "Optimizer.step"


class Work(NamedTuple):
    """One kernel, or the time that an operator of a CPU spends itself."""

    name: str
    kind: Kind
    start_s: float
    end_s: float


class Window(NamedTuple):
    """One step of a trace, seconds."""

    start_s: float
    end_s: float


class Measured(NamedTuple):
    """The work of a trace, and the steps that it is of."""

    work: list[Work]
    windows: list[Window]
    is_gpu: bool
    others: int
    """Devices of the trace that are left out: a rank has one GPU."""


def measured(slices: list[Slice]) -> Measured:
    """Return the work of a trace: of its busiest GPU, else of the CPU.

    Without annotations of steps the whole trace is one.
    """
    on_gpu = [own for own in slices if own.category in ON_GPU]
    devices = Counter(own.thread[0] for own in on_gpu)
    if on_gpu:
        device = devices.most_common(1)[0][0]
        updates = _updates(slices, "gpu_user_annotation")
        mine = [own for own in on_gpu if own.thread[0] == device]
        work = [_work(own, own.start_s, own.end_s, updates) for own in mine]
    else:
        updates = _updates(slices, "user_annotation")
        segments = _own_segments([own for own in slices if own.category == ON_CPU])
        work = [_work(own, start, end, updates) for own, start, end in segments]
    windows = _windows(slices, work, bool(on_gpu))
    return Measured(work, windows, bool(on_gpu), max(len(devices) - 1, 0))


def _updates(slices: list[Slice], category: str) -> Floats:
    """Return when the optimizer runs, as intervals apart."""
    found = [
        (own.start_s, own.end_s)
        for own in slices
        if own.category == category and own.name.startswith(OPTIMIZER)
    ]
    return merged(np.array(found)) if found else NONE


def _work(own: Slice, start_s: float, end_s: float, updates: Floats) -> Work:
    """Return a piece of work; whatever runs inside the optimizer's step is its."""
    at = int(np.searchsorted(updates[:, 0], start_s, side="right")) - 1
    is_update = at >= 0 and start_s < updates[at, 1]
    kind = "optimizer" if is_update else kind_of(own.name, own.about)
    return Work(own.name, kind, start_s, end_s)


def _windows(slices: list[Slice], work: list[Work], is_gpu: bool) -> list[Window]:
    """Return the steps that have work; those of the GPU's own clock where it has any.

    The host runs ahead of the GPU, so that its annotations are off by that.
    """
    steps = [own for own in slices if own.name.startswith(STEP)]
    on_gpu = [own for own in steps if own.category == "gpu_user_annotation"]
    chosen = on_gpu if is_gpu and on_gpu else steps
    found = sorted({Window(own.start_s, own.end_s) for own in chosen})
    starts = np.sort([own.start_s for own in work])
    has_work = np.searchsorted(starts, [w.end_s for w in found]) - np.searchsorted(
        starts, [w.start_s for w in found]
    )
    found = [window for window, n in zip(found, has_work.tolist(), strict=True) if n]
    if found or not work:
        return found
    return [Window(min(w.start_s for w in work), max(w.end_s for w in work))]


def _own_segments(slices: list[Slice]) -> Iterator[tuple[Slice, float, float]]:
    """Yield when operators run themselves, not those that they call."""
    threads = defaultdict(list)
    for own in slices:
        threads[own.thread].append(own)
    for calls in threads.values():
        yield from _of_thread(sorted(calls, key=lambda s: (s.start_s, -s.end_s)))


def _of_thread(calls: Iterable[Slice]) -> Iterator[tuple[Slice, float, float]]:
    open_calls: list[Slice] = []
    clock_s = 0.0
    for call in calls:
        while open_calls and open_calls[-1].end_s <= call.start_s:
            done = open_calls.pop()
            if done.end_s > clock_s:
                yield done, clock_s, done.end_s
            clock_s = max(clock_s, done.end_s)
        if open_calls and call.start_s > clock_s:
            yield open_calls[-1], clock_s, call.start_s
        clock_s = max(clock_s, call.start_s)
        open_calls.append(call)
    for done in reversed(open_calls):
        if done.end_s > clock_s:
            yield done, clock_s, done.end_s
            clock_s = done.end_s
