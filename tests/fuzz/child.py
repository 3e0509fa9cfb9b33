"""Reads a batch of inputs in a process of its own, which may die of one of them.

Each input is announced by a line before it is read, so that whoever reads the lines
knows of which one the process died.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import signal
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from meshwright.errors import MeshwrightError
from tests.fuzz.mutate import mutated
from tests.fuzz.readers import PLANTED, READERS, Reader

CPU_S = 2.0
"""That one input may take: of the processor, as other processes hold up the clock."""

MEMORY_MIB = 512
"""That reading may take beside what the process has before."""

LONGEST_MESSAGE = 2_000
"""Characters: a screen."""


def input_of(name: str, seed: int, index: int) -> bytes:
    """Return one input of a reader."""
    rng = random.Random(f"{seed} {name} {index}")
    return mutated(_reader(name).samples, rng)


def run(said: str, errors: str, name: str, seed: int, start: int, stop: int) -> None:
    """Read the inputs in a process that prints into two files."""
    for path, stream in ((said, 1), (errors, 2)):
        Path(path).touch()
        os.dup2(os.open(path, os.O_WRONLY), stream)
    faulthandler.enable()
    main(name, seed, start, stop)


def main(name: str, seed: int, start: int, stop: int) -> None:
    """Read the inputs from `start` to before `stop`, and print what became of each."""
    reader = _reader(name)
    warnings.simplefilter("error")
    with TemporaryDirectory() as folder:
        if name in READERS:
            _read(reader, reader.samples[0], Path(folder))  # imports what it needs
        _limit_memory()
        faulthandler.register(signal.SIGPROF, chain=True)
        for index in range(start, stop):
            data = input_of(name, seed, index)
            print(json.dumps({"index": index}), flush=True)
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            outcome, told = _read(reader, data, Path(folder))
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps({"outcome": outcome, "told": told}), flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mib": peak_mib}), flush=True)


def _reader(name: str) -> Reader:
    return (READERS | PLANTED)[name]


def _read(reader: Reader, data: bytes, folder: Path) -> tuple[str, str]:
    """Return what became of an input, and the last lines of what is to be mended."""
    path = folder / "input"
    path.write_bytes(data)
    try:
        reader.read(path)
    except MeshwrightError as error:
        is_long = len(str(error)) > LONGEST_MESSAGE
        return ("long" if is_long else "refused"), str(error)[: 300 * is_long]
    except MemoryError:
        return "memory", traceback.format_exc(limit=-6)
    except Exception:
        return "traceback", traceback.format_exc(limit=-6)[-2_000:]
    finally:
        for file in folder.iterdir():
            file.unlink()
    return "accepted", ""


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + MEMORY_MIB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
