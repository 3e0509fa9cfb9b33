"""How memory ran out: PyTorch's message in a log, and a snapshot of its allocator.

`torch.cuda.memory._snapshot()` returns a dictionary of segments, which are reserved
memory, and of traces, which are what the allocator did (torch/cuda/memory.py at
00b65a04, `_snapshot`). It is read as JSON. Its pickled form is never read: a pickle
runs code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from meshwright.imports.launches.launch import Launch
from meshwright.imports.logs.log_text import LogLine, StepTimes, compiled
from meshwright.imports.logs.training_log import (
    OutOfMemory,
    Peak,
    Phase,
    TrainingLog,
    missing,
)
from meshwright.imports.registry import TrainingLogImporter
from meshwright.imports.text import data_in, fail, listed, mappings
from meshwright.spec.units import GIB

_SIZE = r"(\d{1,20}(?:\.\d{1,6})?)[ ]?(bytes|[KMGT]i?B)"

_TRIED = re.compile(rf"out of memory\b.{{0,80}}?Tried to allocate[ ]{_SIZE}")

_NUMBERS = compiled(
    {
        "capacity_gib": rf"total capac?i?ty of[ ]{_SIZE}|;[ ]{_SIZE}[ ]total capacity",
        "free_gib": rf"of which[ ]{_SIZE}[ ]is free|;[ ]{_SIZE}[ ]free",
        "in_use_gib": rf"this process has[ ]{_SIZE}[ ]memory in use",
        "of_process": rf"Process \d{{1,9}} has[ ]{_SIZE}[ ]memory in use",
        "allocated_gib": rf"allocated memory[ ]{_SIZE}[ ]is allocated by PyTorch"
        rf"|;[ ]{_SIZE}[ ]already allocated",
        "unallocated_gib": rf"and[ ]{_SIZE}[ ]is reserved by PyTorch but unallocated",
        "reserved": rf";[ ]{_SIZE}[ ]reserved in total",
    }
)
"""Numbers of the message, as PyTorch 2 words them and as PyTorch 1 does."""

_GPU = re.compile(r"\b[GNX]PU (\d{1,4})\b")

_IN_GIB = {"b": 2.0**-30, "k": 2.0**-20, "m": 2.0**-10, "g": 1.0, "t": 2.0**10}

MOST_ABOVE = 200
"""Lines above the message in which its traceback begins."""

MOST_FRAMES = 40
"""Lines of source of a traceback that are kept, the innermost ones."""

_FRAME = re.compile(
    r"File \"(?P<path>[^\"]{1,300})\", line (?P<line>\d{1,7}), "
    r"in (?P<name>[\w<>.]{1,100})"
    r"|│[ ](?P<boxed>/[^│:]{1,300}\.py):(?P<at>\d{1,7})[ ]in[ ](?P<of>[\w<>.]{1,100})"
)
"""A frame as Python prints it, and as rich draws it in a box."""

_POINTED = re.compile(r"❱[ ]{0,9}\d{1,7}[ ]│(.{1,300})")
"""The line of source of a frame that rich draws."""

_PHASES: Sequence[tuple[Phase, str]] = (
    ("checkpoint", r"save_checkpoint|save_model\b|state_dict\(\)"),
    ("log-probabilities", r"(?i)log_?probs?\b|per_token_logps|logprobs_from"),
    ("generation", r"(?i)\bgenerate\b|generate_sequences|vllm|sglang"),
    (
        "evaluation",
        r"\bevaluat|evaluation_loop|prediction_step|\bvalidat|\beval_step",
    ),
    ("backward", r"\bbackward\b|_engine_run_backward|autograd/graph\.py"),
    (
        "loading",
        r"from_pretrained|load_model|load_checkpoint|load_state_dict|init_weights"
        r"|deepspeed\.initialize|setup_model|_move_model|init_empty"
        r"|\bbuild_module\b|super\(\)\.__init__\(",
    ),
    (
        "optimizer step",
        r"optimi[sz]ers?\.step|\boptim/|/optim|_init_group|_multi_tensor"
        r"|optimizer_step|exp_avg|take_model_step",
    ),
    (
        "loss",
        r"cross_entropy|loss_function|loss_fn|ForCausalLMLoss|lm_head|logits"
        r"|compute_language_model_loss",
    ),
    ("forward", r"\bforward\b|_call_impl"),
    ("loading", r"\.to\(|\.cuda\(|_convert\b|\bconvert\b"),
)
"""Words of a traceback in each phase; the first that fits counts."""


def find_out_of_memory(
    lines: Sequence[LogLine], steps: StepTimes
) -> OutOfMemory | None:
    """Return the first message that memory ran out; None in a log without."""
    for index, line in enumerate(lines):
        if "out of memory" not in line.text:
            continue
        text = line.text + _rest(lines, index)
        if tried := _TRIED.search(text):
            return _read(lines, index, text[tried.start() :], tried, steps)
    return None


def _rest(lines: Sequence[LogLine], index: int) -> str:
    """Return the lines behind one that a terminal may have broken in two."""
    rank = lines[index].rank
    behind = lines[index + 1 : index + 6]
    return "".join(" " + line.text for line in behind if line.rank == rank)


def _read(
    lines: Sequence[LogLine],
    index: int,
    text: str,
    tried: re.Match[str],
    steps: StepTimes,
) -> OutOfMemory:
    line = lines[index]
    text = text[:2_000]
    found = {name: _gib(pattern.search(text)) for name, pattern in _NUMBERS.items()}
    allocated, reserved = found["allocated_gib"], found.pop("reserved")
    of_process = found.pop("of_process")
    if found["in_use_gib"] is None:
        found["in_use_gib"] = of_process
    if reserved is not None and allocated is not None:
        found["unallocated_gib"] = max(reserved - allocated, 0.0)
    gpu = _GPU.search(text)
    frames = _frames(lines, index)
    done = steps.done_before(line.number)
    return OutOfMemory(
        line=line.number,
        tried_gib=_gib(tried) or 0.0,
        gpu=int(gpu[1]) if gpu else None,
        rank=None if line.is_local else line.rank,
        step=done,
        phase=phase_of(frames),
        frames=frames,
        each=None,
        **found,
    )


def _gib(found: re.Match[str] | None) -> float | None:
    """Return the GiB of the first size that a pattern has found."""
    if found is None:
        return None
    values = [value for value in found.groups() if value is not None]
    return float(values[0]) * _IN_GIB[values[1][0].lower()]


def _frames(lines: Sequence[LogLine], index: int) -> tuple[str, ...]:
    """Return the frames of the traceback above a message, the innermost last."""
    rank, frames = lines[index].rank, list[str]()
    above = lines[max(0, index - MOST_ABOVE) : index]
    for at in range(len(above) - 1, -1, -1):
        line = above[at]
        if line.rank != rank:
            continue
        if "Traceback (most recent call last)" in line.text:
            break
        if found := _FRAME.search(line.text):
            behind = [
                line.text for line in above[at + 1 : at + 13] if line.rank == rank
            ]
            path = found["path"] or found["boxed"]
            number, called = found["line"] or found["at"], found["name"] or found["of"]
            frames.append(frame_text(path, number, called, _source(behind, found)))
        if len(frames) >= MOST_FRAMES:
            break
    return tuple(reversed(frames))


def frame_text(path: str, line: object, name: str, source: str = "") -> str:
    """Return a frame in one line: the end of its path, its line, name and source."""
    return f"{'/'.join(path.split('/')[-3:])}:{line} {name[:100]}: {source}"


def _source(behind: Sequence[str], frame: re.Match[str]) -> str:
    """Return the line of source of a frame, of the lines behind it; "" without."""
    if frame["boxed"]:
        until = takewhile(lambda text: not _FRAME.search(text), behind)
        found = next(filter(None, map(_POINTED.search, until)), None)
        return found[1].strip(" │")[:160] if found else ""
    is_source = bool(behind) and not _FRAME.search(behind[0])
    return behind[0].strip()[:160] if is_source else ""


def phase_of(frames: Sequence[str]) -> Phase:
    """Return what the frames say that the rank did."""
    for phase, pattern in _PHASES:
        if any(re.search(pattern, frame) for frame in frames):
            return phase
    return ""


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
    data = data_in(text)
    if not isinstance(data, dict):
        fail(name, 0, "expected torch.cuda.memory._snapshot() as JSON, not cut off")
    held = _held(data)
    traces = [*map(mappings, listed(data.get("device_traces")))][:MOST_DEVICES]
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
    for segment in mappings(data.get("segments")):
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
        for one in mappings(entry.get("frames"))
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
