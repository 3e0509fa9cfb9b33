"""Runs children over the inputs of a reader, and counts what became of each."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

from tests.fuzz import child

BATCH = 2_500
"""Inputs of one process, whose memory grows with what it has read."""

FORKED = get_context("forkserver")
"""Forks children from a process that imported all readers, which takes a second."""

FORKED.set_forkserver_preload([child.__name__])

SILENT_S = 120
"""Of the clock, after which a child that says nothing is ended."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

FAULTS = ("traceback", "crash", "hang", "memory", "long")
"""What no input may lead to."""


class Fault(NamedTuple):
    """An input that a reader did not take well."""

    number: int
    """Of the input; with reader and seed it makes the input again."""
    kind: str
    told: str


@dataclass
class Tally:
    """What became of the inputs of one reader."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    peak_mib: float = 0.0

    @property
    def inputs(self) -> int:
        """Return how many were read."""
        return self.counts.total()

    def add(self, index: int, kind: str, told: str) -> None:
        """Count an input."""
        self.counts[kind] += 1
        if kind in FAULTS:
            self.faults.append(Fault(index, kind, told))


def run(name: str, examples: int, seed: int = 0, first: int = 0) -> Tally:
    """Return what became of the inputs of a reader, whatever they do to children."""
    tally = Tally(name)
    start = first
    while start < first + examples:
        stop = min(start + BATCH, first + examples)
        start = _batch(tally, name, seed, start, stop)
    return tally


def _batch(tally: Tally, name: str, seed: int, start: int, stop: int) -> int:
    """Run one child, and return the input to go on with."""
    with TemporaryDirectory() as folder:
        said, errors = Path(folder, "said"), Path(folder, "errors")
        words = (str(said), str(errors), name, seed, start, stop)
        process = FORKED.Process(target=child.run, args=words)
        with mock.patch.dict(os.environ, ONE_THREAD):
            process.start()
        known = -1
        while process.exitcode is None and _size(said) > known:
            known = _size(said)
            process.join(SILENT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        lines, told = (path.read_text("utf-8") for path in (said, errors))
    return _count(tally, lines.splitlines(), start, stop, process.exitcode or 0, told)


def _size(said: Path) -> int:
    return said.stat().st_size if said.exists() else 0


def _count(
    tally: Tally, lines: list[str], start: int, stop: int, code: int, errors: str
) -> int:
    index, is_open = start - 1, False
    for said in map(_said, lines):
        if "index" in said:
            index, is_open = said["index"], True
        elif "outcome" in said:
            tally.add(index, said["outcome"], said["told"])
            is_open = False
        else:
            tally.peak_mib = max(tally.peak_mib, said.get("peak_mib", 0.0))
    if is_open:
        kind = "hang" if code in (-signal.SIGPROF, -signal.SIGKILL) else "crash"
        tally.add(index, kind, f"exit code {code}\n{errors[-2_000:]}")
    elif code:
        raise RuntimeError(f"the child of {tally.name} failed:\n{errors[-2_000:]}")
    return index + 1 if is_open or index + 1 < stop else stop


def _said(line: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(line)
    return said


def table(tallies: list[Tally]) -> Iterator[str]:
    """Yield the lines of a table of readers."""
    columns = ("accepted", "refused", *FAULTS)
    yield " ".join(f"{one:>9}" for one in (f"{'reader':17}", "inputs", *columns, "MiB"))
    for tally in tallies:
        cells = (tally.inputs, *(tally.counts[column] for column in columns))
        numbers = " ".join(f"{cell:9}" for cell in (*cells, round(tally.peak_mib)))
        yield f"{tally.name:17} {numbers}"
