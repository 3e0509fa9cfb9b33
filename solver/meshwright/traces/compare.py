"""Compares a modelled trace with a measured one, phase by phase."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.plans.columns import Floats
from meshwright.results.simulation import (
    KernelKind,
    PhaseTimes,
    TraceComparison,
)
from meshwright.traces.work import (
    NONE,
    PHASE_OF,
    PHASES,
    Measured,
    Phase,
    Trace,
    Window,
    Work,
    clipped,
    length,
    lengths_in_turn,
    measured,
    merged,
    read_trace,
)

PHASE_OF_PART: dict[str, Phase] = {
    "compute": "compute",
    "recompute": "compute",
    "optimizer": "optimizer",
    "tp": "collectives",
    "zero": "collectives",
    "dp": "collectives",
    "ep": "all-to-all",
    "pp": "send-recv",
    "offload": "copies",
    "host": "idle",
}
"""The phase of a part of the modelled step."""

CONTEXT: dict[str, Phase] = {
    "ring": "send-recv",
    "gather": "collectives",
    "ulysses": "all-to-all",
}
"""The phase of context parallelism, by how it communicates."""

BUSY = [phase for phase in PHASES if phase != "idle"]
NAMES = 2
"""Kernels of a kind that are named."""


def compare_traces(
    modelled: Path, real: Path, stage: int | None = None
) -> TraceComparison:
    """Return the phases of a modelled step and of a measured one side by side.

    Args:
        modelled: A trace that `solve --trace` wrote.
        real: A trace of `torch.profiler`, of one rank.
        stage: The pipeline stage of that rank; without, the busiest one.

    Raises:
        SpecError: a file is no trace, or not of that kind, or has no such stage.
    """
    model_trace = _modelled(read_trace(modelled), modelled)
    chosen = _stage(model_trace, stage, modelled)
    model = model_trace.phases[chosen]
    told = measured(read_trace(real).slices)
    if not told.work or not told.windows:
        wanted = "expected kernels of a GPU, or operators, as torch.profiler writes"
        raise SpecError(f"{printable(str(real))}: has no work in it; {wanted}")
    return TraceComparison(
        title=model_trace.title,
        stage=chosen,
        stages=len(model_trace.phases),
        steps=len(told.windows),
        is_gpu=told.is_gpu,
        modelled_s=model_trace.end_s,
        measured_s=_mean([w.end_s - w.start_s for w in told.windows]),
        phases=tuple(_phases(model, model_trace.end_s, told)),
        kernels=tuple(_kernels(told)),
        notes=tuple(_notes(told)),
    )


class _Model:
    """A trace of Meshwright's: the seconds of each stage by phase."""

    def __init__(self, trace: Trace) -> None:
        exchange = CONTEXT[str(trace.about.get("context_exchange", "ring"))]
        self.title = str(trace.about.get("title", ""))
        self.phases: dict[int, dict[Phase, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        self.end_s = max(event.end_s for event in trace.slices)
        for event in trace.slices:
            phase = exchange if event.category == "cp" else None
            phase = phase or PHASE_OF_PART.get(event.category)
            if phase is not None:
                seconds = event.end_s - event.start_s
                self.phases[int(event.thread[0])][phase] += seconds


def _modelled(trace: Trace, path: Path) -> _Model:
    where = printable(str(path))
    if trace.about.get("producer") != "meshwright":
        raise SpecError(f"{where}: not a modelled trace; `solve --trace` writes one")
    try:
        model = _Model(trace)
    except (KeyError, ValueError):
        raise SpecError(f"{where}: a modelled trace that was changed") from None
    if not model.phases:
        raise SpecError(f"{where}: a modelled trace that was changed")
    return model


def _stage(model: _Model, stage: int | None, path: Path) -> int:
    if stage is None:
        return max(
            model.phases, key=lambda e: (math.fsum(model.phases[e].values()), -e)
        )
    if stage not in model.phases:
        has = f"{printable(str(path))} has stages 0 to {max(model.phases)}"
        raise SpecError(f"--stage {stage}: no such stage; {has}")
    return stage


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _phases(
    model: Mapping[Phase, float], modelled_s: float, told: Measured
) -> Iterator[PhaseTimes]:
    """Yield the phases of a step; idle is the rest of it."""
    sets = [
        _intervals([piece for piece in told.work if PHASE_OF[piece.kind] == phase])
        for phase in BUSY
    ]
    per_step = [_in_window(sets, window) for window in told.windows]
    busy_s = math.fsum(model.get(phase, 0.0) for phase in BUSY)
    for index, phase in enumerate(BUSY):
        yield PhaseTimes(
            phase=phase,
            modelled_s=model.get(phase, 0.0),
            measured_s=_mean([seen[index] for seen, _ in per_step]),
            busy_s=_mean([busy[index] for _, busy in per_step]),
        )
    rest = [
        window.end_s - window.start_s - math.fsum(seen)
        for window, (seen, _) in zip(told.windows, per_step, strict=True)
    ]
    idle_s = max(_mean(rest), 0.0)
    yield PhaseTimes(
        phase="idle", modelled_s=modelled_s - busy_s, measured_s=idle_s, busy_s=idle_s
    )


def _intervals(work: list[Work]) -> Floats:
    spans = [(piece.start_s, piece.end_s) for piece in work]
    return merged(np.array(spans)) if spans else NONE


def _in_window(sets: list[Floats], window: Window) -> tuple[list[float], list[float]]:
    """Return exposed and total seconds of each phase in one step."""
    inside = [clipped(intervals, *window) for intervals in sets]
    return lengths_in_turn(inside), [length(intervals) for intervals in inside]


def _kernels(told: Measured) -> Iterator[KernelKind]:
    """Yield the measured work by kind, in one step."""
    counts: Counter[str] = Counter()
    names: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for piece in told.work:
        if any(w.start_s <= piece.start_s < w.end_s for w in told.windows):
            counts[piece.kind] += 1
            names[piece.kind][piece.name] += piece.end_s - piece.start_s
    steps = len(told.windows)
    for kind, phase in PHASE_OF.items():
        if counts[kind]:
            by_time = sorted(names[kind], key=names[kind].__getitem__, reverse=True)
            yield KernelKind(
                kind=kind,
                phase=phase,
                count=counts[kind] / steps,
                seconds=math.fsum(names[kind].values()) / steps,
                names=tuple(map(printable, by_time[:NAMES])),
            )


def _notes(told: Measured) -> Iterator[str]:
    if not told.is_gpu:
        yield "The trace has no kernels of a GPU; operators of the CPU stand for them."
    if told.others:
        yield f"{told.others} more devices of the trace are left out: a rank has one."
    known = math.fsum(
        piece.end_s - piece.start_s for piece in told.work if piece.kind == "other"
    )
    whole = math.fsum(piece.end_s - piece.start_s for piece in told.work)
    if known > 0.05 * whole:
        share = f"{known / whole:.0%} of the work"
        yield f"{share} is in kernels of no known kind; it counts as compute."
