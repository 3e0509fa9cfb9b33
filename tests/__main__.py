"""Runs every check: `python -m tests`. Further words go to pytest."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, CompletedProcess

from tests.helpers.extent import ALL

ROOT = Path(__file__).parents[1]

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as lint; lint()"

QUICK = (
    ("-m", "ruff", "check", "."),
    ("-m", "ruff", "format", "--check", "."),
    ("-c", LINT_IMPORTS, "--no-logo"),
)

BESIDE = (
    ("-m", "mypy"),
    ("-m", "sphinx", "-q", "-W", "--keep-going", "-E", "docs", "build/docs"),
)
"""Checks that keep one core busy, and run beside pytest."""

PYTEST = ("-m", "pytest", "-n", "auto", "--dist", "worksteal")

HELP = """\
Runs ruff and the check of layers, then pytest with mypy and the site beside it, which
are told last. Every test runs, those that draw random specs or compare with brute
force on a share of their examples. That takes minutes.

Further words go to pytest, for example:
  python -m tests -k memory          the tests whose name has this word
  python -m tests -m "not slow"      no test that takes seconds
  python -m tests --hypothesis-profile random      new random examples
"""


def main() -> None:
    """Run quick checks up to the first that fails, then all others."""
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="all examples of every test, before a release",
    )
    asked, further = parser.parse_known_args()
    environment = os.environ | ({ALL: "all"} if asked.all else {})
    # Tests start hundreds of processes, each of which would compile all modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for words in QUICK:
        if code := run(words, environment, None).returncode:
            sys.exit(code)
    with ThreadPoolExecutor() as threads:
        started = [threads.submit(run, one, environment, PIPE) for one in BESIDE]
        codes = [run((*PYTEST, *further), environment, None).returncode]
        for check, running in zip(BESIDE, started, strict=True):
            done = running.result()
            print("+ python", *check)
            print(done.stdout or "", end="", flush=True)
            codes.append(done.returncode)
    sys.exit(next(filter(None, codes), 0))


def run(
    words: Sequence[str], environment: Mapping[str, str], output: int | None
) -> CompletedProcess[str]:
    """Run a check, and say so; what goes to a pipe is told by the caller."""
    if output is None:
        print("+ python", *words, flush=True)
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        check=False,
        text=True,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
    )


if __name__ == "__main__":
    main()
