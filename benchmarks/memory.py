"""The memory of a process and those it starts, from outside; Linux."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from pathlib import Path

LOOK_S = 0.25


def peak_mib_while(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process; return the MiB that the largest of its family ever held."""
    peak = 0.0
    while True:
        peak = max([peak, *map(peak_mib, family(process.pid))])
        try:
            process.wait(LOOK_S)
            return peak
        except subprocess.TimeoutExpired:
            continue


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    with suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found += family(int(child))
    return found


def peak_mib(pid: int) -> float:
    """Return the most that a process has held; 0 once it is gone."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        if match := re.search(r"VmHWM:\s+(\d+) kB", status):
            return int(match[1]) / 1024
    return 0.0
