"""What a process and all that it starts use, from outside; Linux."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LOOK_S = 0.25


class Used(NamedTuple):
    """What a family of processes used."""

    peak_mib: float
    """The most that any one of them ever held."""
    cpu_s: float
    """Of all of them, but for what they did in the last moment of their lives."""


def used_by(process: subprocess.Popen[bytes]) -> Used:
    """Wait for a process, and return what it and its children used."""
    peak_mib: dict[int, float] = {}
    cpu_s: dict[int, float] = {}
    while True:
        for pid in family(process.pid):
            with suppress(OSError):
                peak_mib[pid], cpu_s[pid] = _peak_mib(pid), _cpu_s(pid)
        try:
            process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            continue
        return Used(max(peak_mib.values(), default=0.0), sum(cpu_s.values()))


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    with suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found += family(int(child))
    return found


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) / 1024 if match else 0.0


def _cpu_s(pid: int) -> float:
    """Return the seconds in user and system mode, fields 14 and 15 of proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
