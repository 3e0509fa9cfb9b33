"""Changes the code at random, and lists what no test sees.

    python -m tests.mutants --sample 250 --seed 1     of all files, by their size
    python -m tests.mutants --at cost/traffic.py:111  all changes of one line

Works on a copy of the tree; `--under cost/` takes some files alone. What passes the
tests that judge its file is judged by all tests of `WIDER`, unless `--narrow` is said.
Ends with the rate of changes seen by room. What `survivors.py` gives a reason for
still counts as not seen.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import networkx
import numpy
import ortools.sat.python.cp_model
import pydantic
import pytest
import scipy.optimize

from tests.mutants.changes import Change, changed, changes
from tests.mutants.judges import JUDGES, WIDER, judges
from tests.mutants.survivors import reason

LIBRARIES = (networkx, numpy, ortools, pydantic, scipy)
"""What every process of tests would import again."""

ROOT = Path(__file__).parents[2]
CODE = Path("solver/meshwright")

LIMIT_S = 200
"""CPU seconds of the tests that judge a file: beyond, they have seen the change."""

WIDER_LIMIT_S = 3_600
"""CPU seconds of all tests of `WIDER`."""

STUCK = 10
"""Times a limit that tests may take on the wall, where they wait for something."""

OUT_OF_TIME = (signal.SIGXCPU, signal.SIGKILL)
"""What ends a process at its limit of CPU seconds."""

SURVIVED = "SURVIVED"


def main() -> None:
    """Judge a sample of changes and print those that survive."""
    words = _words()
    with tempfile.TemporaryDirectory() as folder:
        tree = _copied(Path(folder))
        os.chdir(tree)
        found = _chosen(words)
        for tests in {tuple(judges(change.path)) for change in found}:
            if _verdict(list(tests), LIMIT_S) != SURVIVED:
                sys.exit(f"these fail without any change: {' '.join(tests)}")
        drawn: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        for number, change in enumerate(found, 1):
            start = time.monotonic()
            verdict, why = _judged(change, words.narrow)
            for room in (change.path.split("/")[0], "all"):
                drawn[room] += 1
                seen[room] += verdict != SURVIVED
            took = f"{time.monotonic() - start:.0f} s"
            told = f"{change.path}:{change.line}: {change.what}{why}"
            print(f"{number:4} {verdict:8} {took:>6} {told}", flush=True)
        for room, count in drawn.items():
            print(_rate(room, seen[room], count))


def _rate(room: str, seen: int, drawn: int) -> str:
    """Return the share of changes seen with its 95 % interval (Wilson 1927)."""
    share, z2 = seen / drawn, 1.96**2
    middle = (share + z2 / (2 * drawn)) / (1 + z2 / drawn)
    half = math.sqrt(share * (1 - share) * z2 / drawn + (z2 / (2 * drawn)) ** 2)
    half /= 1 + z2 / drawn
    ends = f"{middle - half:.1%} to {middle + half:.1%}"
    return f"{room}: {seen} of {drawn} seen, {share:.1%} ({ends})"


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--sample", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="")
    parser.add_argument("--narrow", action="store_true")
    parser.add_argument("--at", action="append", default=[], metavar="PATH:LINE")
    return parser.parse_args()


def _copied(folder: Path) -> Path:
    """Return a copy of the tree as git knows it, with what is not committed yet."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def _chosen(words: argparse.Namespace) -> list[Change]:
    """Return the changes to judge: larger files have more of them."""
    paths = sorted(path for pattern in JUDGES for path in CODE.glob(pattern))
    names = [path.relative_to(CODE).as_posix() for path in dict.fromkeys(paths)]
    every = [
        change
        for name in names
        if name.startswith(words.under)
        for change in changes(name, (CODE / name).read_text(encoding="utf-8"))
    ]
    if words.at:
        return [one for one in every if f"{one.path}:{one.line}" in words.at]
    return sorted(
        random.Random(words.seed).sample(every, min(words.sample, len(every)))
    )


def _judged(change: Change, is_narrow: bool) -> tuple[str, str]:
    """Return whether tests see a change, and why not, where that is known."""
    path = CODE / change.path
    before = path.read_text(encoding="utf-8")
    path.write_text(changed(before, change), encoding="utf-8")
    try:
        verdict = _verdict(judges(change.path), LIMIT_S)
        if verdict == SURVIVED and not is_narrow:
            verdict = _verdict([f"tests/{room}" for room in WIDER], WIDER_LIMIT_S)
    finally:
        path.write_text(before, encoding="utf-8")
    why = reason(change, before) if verdict == SURVIVED else ""
    return verdict, f" ({why})" if why else ""


def _verdict(tests: list[str], limit_s: int) -> str:
    """Run tests in a forked process, which has the large libraries already."""
    child = os.fork()
    if not child:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        os._exit(_run(tests))
    end = time.monotonic() + STUCK * limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in OUT_OF_TIME
            return "timeout" if slow else "killed" if status else SURVIVED
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def _run(tests: list[str]) -> int:
    """Return 0 where all tests pass, of the copied tree alone."""
    for name in [module for module in sys.modules if module.split(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path[:] = [
        one for one in sys.path if ROOT not in (Path(one), *Path(one).parents)
    ]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.dont_write_bytecode = True
    words = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "quick"]
    try:
        return int(pytest.main([*words, *tests]))
    except BaseException:
        return 1


if __name__ == "__main__":
    main()
