"""The facts of a training log: configuration, step time, memory, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from meshwright.errors import SpecError
from meshwright.imports.launches.launch import Launch
from meshwright.imports.registry import detect_log, importer, kinds
from meshwright.imports.text import read_text
from meshwright.spec.model import WHOLE_MODEL

Phase = Literal[
    "loading",
    "forward",
    "loss",
    "backward",
    "optimizer step",
    "evaluation",
    "generation",
    "log-probabilities",
    "checkpoint",
    "",
]
"""The phase in which memory ran out; "" where the log does not tell."""

LeftOutBecause = Literal["warm-up", "evaluation", "checkpoint", "pause"]
"""Why a step does not count as steady; a pause has no cause in the log."""

PartOf = Literal[
    "forward",
    "backward",
    "forward and backward",
    "gradient reduction",
    "parameter gather",
    "optimizer",
    "pipeline",
    "input",
    "other",
]
"""A part of a step that a timer of a log measures."""


@dataclass(frozen=True)
class Steps:
    """The time of steady steps."""

    step_s: float
    """Median seconds of a step."""
    low_s: float
    """Tenth percentile of the steady steps."""
    high_s: float
    """Ninetieth percentile of the steady steps."""
    count: int
    """Steps that count as steady."""
    left_out: dict[LeftOutBecause, tuple[int, ...]] = field(default_factory=dict)
    """Numbers of the steps that do not count, by the reason."""
    is_first_alone: bool = False
    """Whether the log has no other step than its first, which warms up."""


@dataclass(frozen=True)
class Peak:
    """The most memory that a rank has held, in GiB; None where the log has none."""

    rank: int | None = None
    """None where the log does not tell the rank."""
    allocated_gib: float | None = None
    """In tensors, as PyTorch counts them."""
    reserved_gib: float | None = None
    """By PyTorch's allocator, which keeps what it once took."""
    device_gib: float | None = None
    """In use on the device, by whatever: as nvidia-smi counts it."""


def most(*values: float | None) -> float | None:
    """Return the largest of some values that are known; None if none is."""
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class Part:
    """Seconds of a step that a timer has measured."""

    name: str
    """The timer as the log names it."""
    of: PartOf
    seconds: float
    """On the slowest rank, where the log has several; the median of steady steps."""
    fastest_s: float | None = None
    """The same on the fastest rank; None where the log has one rank or the slowest."""


@dataclass(frozen=True)
class OutOfMemory:
    """A message of PyTorch that memory ran out; None for what it does not say."""

    line: int
    """The line of the log."""
    tried_gib: float
    """The allocation that failed."""
    capacity_gib: float | None = None
    """Memory of the GPU."""
    free_gib: float | None = None
    in_use_gib: float | None = None
    """Memory of the process, with its context and libraries."""
    allocated_gib: float | None = None
    """In tensors, as PyTorch counts them."""
    unallocated_gib: float | None = None
    """Reserved by PyTorch but unallocated: fragments, and blocks kept for later."""
    gpu: int | None = None
    """Number of the GPU in its host."""
    rank: int | None = None
    """Among all ranks."""
    step: int = 0
    """Steps that were complete before; 0 is the first one."""
    phase: Phase = ""
    frames: tuple[str, ...] = ()
    """Lines of source in the traceback, the innermost last."""
    each: int | None = None
    """Sequences of an example: 2 where a training compares pairs of answers."""


@dataclass(frozen=True)
class TrainingLog:
    """A run as its log tells it. Values of the loss are not kept."""

    kind: str
    """The kind of log, as `meshwright import` names it."""
    title: str
    """The program that wrote it."""
    launch: Launch
    """The configuration in the log, as files that start a training give it."""
    gpu: str = ""
    """Name of the GPUs as the log has it; empty if it has none."""
    steps: Steps | None = None
    """None where the log has no time of a step."""
    peaks: tuple[Peak, ...] = ()
    """The peak of each rank that reports one."""
    tokens_per_s_per_gpu: float | None = None
    """As printed: the median of steady steps."""
    tflops_per_gpu: float | None = None
    """As printed, by the log's count of operations: the median of steady steps."""
    parts: tuple[Part, ...] = ()
    out_of_memory: OutOfMemory | None = None
    """The first such message, None in a log without."""
    died: str = ""
    """Why else the run died, as far as the log says it."""
    notes: tuple[str, ...] = ()
    """Sentences on what was left out, assumed, or contradicts."""
    unknown: tuple[str, ...] = ()
    """Fields that a spec needs and the log does not tell."""

    @property
    def peak(self) -> Peak:
        """Return the most of each kind of memory over all ranks."""
        names = ("allocated_gib", "reserved_gib", "device_gib")
        found = (most(*(getattr(one, name) for one in self.peaks)) for name in names)
        rank = max(
            self.peaks,
            key=lambda peak: (peak.reserved_gib or 0.0, peak.allocated_gib or 0.0),
            default=Peak(),
        ).rank
        return Peak(rank, *found)

    @property
    def measured(self) -> dict[str, Any]:
        """Return what was measured, as a run of `meshwright calibrate` has it."""
        found: dict[str, Any] = {}
        if self.steps is not None:
            found["step_time_s"] = float(f"{self.steps.step_s:.6g}")
        kinds = {"allocated": "allocated_gib", "reserved": "reserved_gib"}
        for kind, name in (*kinds.items(), ("device", "device_gib")):
            if (peak := getattr(self.peak, name)) is not None:
                found |= {"peak_memory_gb": round(peak, 3), "peak_memory_kind": kind}
                break
        if self.out_of_memory is not None:
            found = {"fits": False}
        elif found:
            found["fits"] = True
        return found

    def told(self) -> Iterator[str]:
        """Yield sentences on what was measured."""
        if (steps := self.steps) is not None:
            out = (
                f"{len(numbers)} after {reason}"
                if reason in ("evaluation", "checkpoint")
                else f"{len(numbers)} of {reason}"
                for reason, numbers in steps.left_out.items()
            )
            left = f"; left out: {', '.join(out)}" if steps.left_out else ""
            spread = f"({steps.low_s:.6g} to {steps.high_s:.6g} s, eight in ten)"
            of = f"the median of {steps.count} steps {spread}"
            of = "of one step" if steps.count == 1 else of
            yield f"measured: {steps.step_s:.6g} s a step, {of}{left}"
        for kind in ("allocated", "reserved", "device"):
            peak = getattr(self.peak, f"{kind}_gib")
            if peak is not None:
                ranks = sum(one.rank is not None for one in self.peaks)
                of = f"the fullest of {ranks} ranks" if ranks > 1 else "a rank"
                yield f"measured: {peak:.2f} GiB {kind} at the peak of {of}"
        if self.tokens_per_s_per_gpu is not None:
            yield f"measured: {self.tokens_per_s_per_gpu:.6g} tokens/s on a GPU"
        if self.tflops_per_gpu is not None:
            yield f"printed: {self.tflops_per_gpu:.4g} TFLOP/s on a GPU"
        for part in self.parts:
            if part.of != "other":
                yield f"measured: {part.seconds:.4g} s of {part.name} ({part.of})"
        if (out_of := self.out_of_memory) is not None:
            when = f"after step {out_of.step}" if out_of.step else "in the first step"
            phase = f", in {out_of.phase}" if out_of.phase else ""
            rank = "" if out_of.rank is None else f" on rank {out_of.rank}"
            yield (
                f"line {out_of.line}: out of memory{rank} {when}{phase}: an allocation "
                f"of {out_of.tried_gib:.2f} GiB failed"
            )
        if self.died:
            yield f"died: {self.died}"

    def checked(self) -> TrainingLog:
        """Return the log."""
        told = (self.steps, self.peaks, self.out_of_memory, self.launch.values)
        if not any(told):
            raise SpecError(f"{self.launch.name}: {TELLS_NOTHING}")
        return self


TELLS_NOTHING = (
    "tells nothing of a run: expected the time of a step, a peak of memory, a "
    "configuration, or the message of PyTorch that memory ran out"
)


def read_log(text: str, name: str, kind: str | None = None) -> TrainingLog:
    """Return what a log tells.

    Args:
        text: The log, of one rank or of several.
        name: The name of its file, for messages.
        kind: Its kind; without, it is told by the text.

    Raises:
        SpecError: the text is no log of a kind that is known, or is too long.
    """
    found = kind or detect_log(text)
    if found is None:
        accepted = ", ".join(kinds("training_logs"))
        raise SpecError(f"{name}: no training log that is known; kinds: {accepted}")
    log = importer(found).parse(text, name)
    assert isinstance(log, TrainingLog)
    return log


NEEDED = (
    "training.seq_len",
    "training.global_batch",
    *(f"model.{name}" for name in WHOLE_MODEL),
)
"""Fields that a spec needs, beside its cluster."""


def missing(launch: Launch, gpu: str = "") -> tuple[str, ...]:
    """Return what a spec needs and a log does not tell, by the names of spec fields."""
    names = [] if gpu else ["cluster.gpu"]
    names += [] if launch.value("gpus") else ["cluster.count"]
    known = {name for name in NEEDED if launch.value(name) is not None}
    if all(launch.value(name) for name in _MAKE_A_BATCH):
        known.add("training.global_batch")
    if launch.preset is not None:
        known |= {name for name in NEEDED if name.startswith("model.")}
    return (*names, *(name for name in NEEDED if name not in known))


_MAKE_A_BATCH = ("gpus", "micro_batch", "microbatches")
"""Fields from which the global batch follows."""


NO_LOGS = (".py", ".sh", ".yaml", ".yml", ".toml", ".sbatch", ".slurm")
"""Ends of files that may quote a log, as `grep "elapsed time"` does, and are none."""


def kind_of_log(path: Path) -> str | None:
    """Return the kind of log that a file is, None where it is none."""
    if path.suffix in NO_LOGS:
        return None
    try:
        return detect_log(read_text(path))
    except SpecError:
        return None
