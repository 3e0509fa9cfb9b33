"""Messages of logs that say why a run died, beside that of PyTorch's allocator."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshwright.imports.logs.log_text import LogLine


class _Death(NamedTuple):
    """A cause of death: the pattern of its message, and the sentence on it."""

    pattern: str
    told: str | Callable[[re.Match[str]], str]


def _waited(found: re.Match[str]) -> str:
    """Return the sentence on a collective that a watchdog of NCCL gave up."""
    waited_s = int(found["ms"]) / 1e3
    return (
        f"a rank waited {waited_s:,.0f} s in {found['of']} for others, which had died, "
        "hung, or were busy elsewhere (rank 0 with a checkpoint): their logs say why"
    )


def _lacked(found: re.Match[str]) -> str:
    """Return the sentence on a library that found no memory."""
    return (
        f"{found[0].strip()}: a library found no memory beside what PyTorch has "
        "reserved; the log does not say how much"
    )


_DEATHS = (
    _Death(
        # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
        r"Watchdog caught collective operation timeout: WorkNCCL\(.{0,80}?"
        r"OpType=(?P<of>\w{1,40}).{0,160}?ran for (?P<ms>\d{1,12}) milliseconds",
        _waited,
    ),
    _Death(
        # Slurm, Linux, Ray, and torchrun of a process that got signal 9
        r"[Dd]etected \d{1,9} oom[_-]kill event|OOM Killed\b|Out of memory: Killed "
        r"process|due to the node running low on memory|[Oo]om-kill:",
        "the memory of the host ran out, not that of a GPU",
    ),
    _Death(
        r"Signal 9 \(SIGKILL\) received|exitcode[ ]{0,4}:[ ]{0,4}-9\b",
        "a process was killed by signal 9, as hosts do whose memory runs out: their "
        "kernel's log (dmesg) says so if it is that",
    ),
    _Death(r"\bDUE TO TIME LIMIT\b", "Slurm ended the job at its limit of time"),
    _Death(
        r"\bDUE TO (?:PREEMPTION|NODE FAILURE)\b",
        "Slurm ended the job for want of its nodes",
    ),
    _Death(
        # NVIDIA's table of Xid errors: memory, the bus, NVLink
        r"CUDA error: uncorrectable (?:NVLink|ECC) error|uncorrectable ECC error "
        r"encountered|\bXid [^:]{0,30}\([^)]{1,40}\): (?:48|74|79|94|95)\b",
        "a GPU or its links failed: take its host out",
    ),
    _Death(
        r"CUDA error: (?:an illegal memory access was encountered|device-side assert "
        r"triggered|misaligned address|unspecified launch failure)",
        "a kernel failed: its code or its data is wrong (an index out of range), "
        "not the plan",
    ),
    _Death(
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|Cuda failure 2 |"
        r"(?:CUDA|HIP) error: out of memory|Failed to (?:CUDA|Cuda) (?:calloc|malloc)",
        _lacked,
    ),
    _Death(
        r"ncclRemoteError|NET/IB : Got completion from peer .{1,120}? error",
        "NCCL lost another rank, or the network to it: the rank that failed first says "
        "why",
    ),
)

_PATTERNS = tuple(re.compile(death.pattern) for death in _DEATHS)

_WORDS = re.compile(
    r"Watchdog|Kill|kill|KILL|DUE TO|ncorrectable|Xid|CUDA|Cuda|HIP error|CUBLAS|CUDNN|"
    r"low on memory|exitcode|ncclRemote|NET/IB"
)
"""Words of which a message has one; most lines of a log have none."""


def find_death(lines: Sequence[LogLine], after: int = 0) -> str:
    """Return why a run died, with its line; empty in a log that does not say it.

    Args:
        lines: The lines of a log.
        after: A line up to which the run went on, whatever was printed.
    """
    for line in lines:
        if line.number <= after or not _WORDS.search(line.text):
            continue
        for death, pattern in zip(_DEATHS, _PATTERNS, strict=True):
            if found := pattern.search(line.text):
                told = death.told if isinstance(death.told, str) else death.told(found)
                return f"line {line.number}: {told}"
    return ""
