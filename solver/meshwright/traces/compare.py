"""The work of one GPU in a profiler's trace, beside the step of the model.

Traces are in the Trace Event format, of PyTorch (Kineto) or of Meshwright. Where one
has no kernels of a GPU, operators of the CPU stand for them.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.plans.columns import Floats
from meshwright.reading.yaml_and_csv import read_bytes
from meshwright.results.simulation import KernelKind, PhaseTimes, TraceComparison

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


ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Categories of what runs on a GPU (Kineto, `ActivityType`)."""

ON_CPU = "cpu_op"

STEP = "ProfilerStep#"
"""The annotation of a step, by `torch.profiler`'s `step`."""

OPTIMIZER = "Optimizer.step"


class Work(NamedTuple):
    """One kernel, or one exclusive interval of an operator on a CPU."""

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
    on_gpu = [event for event in slices if event.category in ON_GPU]
    devices = Counter(event.thread[0] for event in on_gpu)
    if on_gpu:
        device = devices.most_common(1)[0][0]
        updates = _updates(slices, "gpu_user_annotation")
        mine = [event for event in on_gpu if event.thread[0] == device]
        work = [_work(event, event.start_s, event.end_s, updates) for event in mine]
    else:
        updates = _updates(slices, "user_annotation")
        segments = _exclusive_segments(
            [event for event in slices if event.category == ON_CPU]
        )
        work = [_work(event, start, end, updates) for event, start, end in segments]
    windows = _windows(slices, work, bool(on_gpu))
    return Measured(work, windows, bool(on_gpu), max(len(devices) - 1, 0))


def _updates(slices: list[Slice], category: str) -> Floats:
    """Return when the optimizer runs, as intervals apart."""
    return _intervals(
        event
        for event in slices
        if event.category == category and event.name.startswith(OPTIMIZER)
    )


def _work(event: Slice, start_s: float, end_s: float, updates: Floats) -> Work:
    """Return a piece of work; inside an optimizer step it is the optimizer's."""
    at = int(np.searchsorted(updates[:, 0], start_s, side="right")) - 1
    is_update = at >= 0 and start_s < updates[at, 1]
    kind = "optimizer" if is_update else kind_of(event.name, event.about)
    return Work(event.name, kind, start_s, end_s)


def _windows(slices: list[Slice], work: list[Work], is_gpu: bool) -> list[Window]:
    """Return the steps that have work; by the GPU's clock where it annotates any.

    The host runs ahead of the GPU, so its annotations come early.
    """
    steps = [event for event in slices if event.name.startswith(STEP)]
    on_gpu = [event for event in steps if event.category == "gpu_user_annotation"]
    chosen = on_gpu if is_gpu and on_gpu else steps
    found = sorted({Window(event.start_s, event.end_s) for event in chosen})
    starts = np.sort([event.start_s for event in work])
    has_work = np.searchsorted(starts, [w.end_s for w in found]) - np.searchsorted(
        starts, [w.start_s for w in found]
    )
    found = [window for window, n in zip(found, has_work.tolist(), strict=True) if n]
    if found or not work:
        return found
    return [Window(min(w.start_s for w in work), max(w.end_s for w in work))]


def _exclusive_segments(slices: list[Slice]) -> Iterator[tuple[Slice, float, float]]:
    """Yield the times in which operators run without the operators that they call."""
    threads = defaultdict(list)
    for event in slices:
        threads[event.thread].append(event)
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


Kind = Literal[
    "matmul",
    "attention",
    "elementwise",
    "optimizer",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "send-recv",
    "memcpy",
    "other",
]

Phase = Literal[
    "compute", "optimizer", "collectives", "all-to-all", "send-recv", "copies", "idle"
]

PHASE_OF: dict[Kind, Phase] = {
    "matmul": "compute",
    "attention": "compute",
    "elementwise": "compute",
    "other": "compute",
    "optimizer": "optimizer",
    "all-gather": "collectives",
    "reduce-scatter": "collectives",
    "all-reduce": "collectives",
    "all-to-all": "all-to-all",
    "send-recv": "send-recv",
    "memcpy": "copies",
}
"""The phase of a step that a kind belongs to, those first that hide others: what runs
at the same time counts for the first of them."""

PHASES: tuple[Phase, ...] = (*dict.fromkeys(PHASE_OF.values()), "idle")

MESSAGES: tuple[tuple[str, Kind], ...] = (
    ("all_?to_?all", "all-to-all"),
    ("all_?gather", "all-gather"),
    ("reduce_?scatter", "reduce-scatter"),
    ("all_?reduce|broadcast|ncclDevKernel_Reduce", "all-reduce"),
    ("send|recv", "send-recv"),
)
"""Collectives by a piece of their name: of NCCL's kernels, of RCCL's, of gloo's and
c10d's operators."""

KERNELS: tuple[tuple[str, Kind], ...] = (
    ("flash|fmha|sdpa|scaled_dot_product|attention|attn|mha_", "attention"),
    ("adam|multi_tensor|foreach|lamb_|sgd|muon|newton_schulz", "optimizer"),
    (
        "gemm|gemv|cutlass|cublas|nvjet|xmma|wgmma|Cijk_|splitK|matmul|"
        "aten::(mm|bmm|addmm|baddbmm|linear|conv|mv|dot|einsum)",
        "matmul",
    ),
    ("Memcpy (HtoD|DtoH)|Memcpy (Host|Device)To(Device|Host)", "memcpy"),
    (
        "elementwise|vectorized|norm|softmax|triton_|reduce|dropout|embedding|index|"
        "gelu|silu|swiglu|relu|rope|rotary|cross_entropy|nll_loss|copy|Memcpy|Memset|"
        "fill|cat|transpose|scatter|gather|permute|topk|sort|cast|aten::",
        "elementwise",
    ),
)
"""Kernels by a piece of their name; the first that fits counts."""

IS_MESSAGE = re.compile("nccl|rccl|c10d|gloo|mpi:", re.IGNORECASE)
_MESSAGES = [(re.compile(words, re.IGNORECASE), kind) for words, kind in MESSAGES]
_KERNELS = [(re.compile(words, re.IGNORECASE), kind) for words, kind in KERNELS]


def kind_of(name: str, about: Mapping[str, Any]) -> Kind:
    """Return the kind of a kernel by its name and what its trace says about it.

    PyTorch says of a kernel of NCCL which collective it is part of: those of an
    all-to-all are sends by name.
    """
    if IS_MESSAGE.search(name):
        told = str(about.get("Collective name") or "")
        for pattern, kind in _MESSAGES:
            if pattern.search(told or name):
                return kind
        return "other"
    for pattern, kind in _KERNELS:
        if pattern.search(name):
            return kind
    return "other"


NONE: Floats = np.zeros((0, 2))
"""No intervals, (0, 2)."""


def merged(intervals: Floats) -> Floats:
    """Return the union of intervals, (n, 2), as intervals apart, in order."""
    if not len(intervals):
        return NONE
    starts, ends = intervals[np.argsort(intervals[:, 0], kind="stable")].T
    latest = np.maximum.accumulate(ends)
    opens = np.concatenate([[True], starts[1:] > latest[:-1]])
    first = np.nonzero(opens)[0]
    last = np.concatenate([first[1:] - 1, [len(starts) - 1]])
    return np.stack([starts[first], latest[last]], axis=1)


def length(intervals: Floats) -> float:
    """Return the length of intervals that lie apart."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def clipped(intervals: Floats, start: float, end: float) -> Floats:
    """Return the parts of intervals that lie inside a window."""
    inside = np.clip(intervals, start, end)
    return np.asarray(inside[inside[:, 1] > inside[:, 0]])


def lengths_in_turn(sets: list[Floats]) -> list[float]:
    """Return, for each set of intervals, the length that no set before it covers."""
    covered, before, result = NONE, 0.0, []
    for intervals in sets:
        covered = merged(np.concatenate([covered, intervals]))
        whole = length(covered)
        result.append(whole - before)
        before = whole
    return result


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
    with suppress(KeyError, ValueError):
        model = _Model(trace)
        if model.phases:
            return model
    raise SpecError(f"{where}: a modelled trace that was changed")


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
        _intervals(piece for piece in told.work if PHASE_OF[piece.kind] == phase)
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


def _intervals(work: Iterable[Work | Slice]) -> Floats:
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
