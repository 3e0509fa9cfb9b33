"""Changes the code at random, and lists what no test sees.

    python -m tests.mutants --sample 250 --seed 1     of all files, by their size
    python -m tests.mutants --at cost/traffic.py:111  all changes of one line

Works on a copy of the tree; `--under cost/` takes some files alone.
"""

from __future__ import annotations

import argparse
import os
import random
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

from tests.mutants.changes import Change, changes
from tests.mutants.judges import JUDGES, judges

LIBRARIES = (networkx, numpy, ortools, pydantic, scipy)
"""What every process of tests would import again."""

ROOT = Path(__file__).parents[2]
CODE = Path("solver/meshwright")

LIMIT_S = 200.0
"""Of one change: tests that take longer have seen it."""


def main() -> None:
    """Judge a sample of changes and print those that survive."""
    words = _words()
    with tempfile.TemporaryDirectory() as folder:
        tree = _copied(Path(folder))
        os.chdir(tree)
        found = _chosen(words)
        for tests in {tuple(judges(change.path)) for change in found}:
            if _verdict(list(tests)) != "SURVIVED":
                sys.exit(f"these fail without any change: {' '.join(tests)}")
        counts: Counter[str] = Counter()
        for number, change in enumerate(found, 1):
            start = time.monotonic()
            verdict = _judged(change)
            counts[verdict] += 1
            took = f"{time.monotonic() - start:.0f} s"
            place = f"{change.path}:{change.line}"
            print(
                f"{number:4} {verdict:8} {took:>6} {place}: {change.what}", flush=True
            )
        print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--sample", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="")
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


def _judged(change: Change) -> str:
    """Return whether its tests see a change."""
    path = CODE / change.path
    before = path.read_text(encoding="utf-8")
    path.write_text(change.source, encoding="utf-8")
    try:
        return _verdict(judges(change.path))
    finally:
        path.write_text(before, encoding="utf-8")


def _verdict(tests: list[str]) -> str:
    """Run tests in a process of their own, which has the large libraries already."""
    child = os.fork()
    if not child:
        os.setsid()
        os._exit(_run(tests))
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "killed" if status else "SURVIVED"
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
