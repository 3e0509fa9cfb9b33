"""Runs every check: `python -m tests`. Further words go to pytest."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.extent import ALL

ROOT = Path(__file__).parents[1]

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as lint; lint()"

CHECKS = (
    ("-m", "ruff", "check", "."),
    ("-m", "ruff", "format", "--check", "."),
    ("-m", "mypy"),
    ("-c", LINT_IMPORTS, "--no-logo"),
    ("-m", "sphinx", "-q", "-W", "--keep-going", "-E", "docs", "build/docs"),
)

PYTEST = ("-m", "pytest", "-n", "auto", "--dist", "worksteal")

HELP = """\
Runs ruff, mypy, the check of layers, the site and pytest, in this order, and stops at
the first that fails. Its limit is 8 minutes on two cores: every test runs, those that
draw random specs or compare with brute force on a share of their examples.

Further words go to pytest, for example:
  python -m tests -k memory          the tests whose name has this word
  python -m tests -m "not slow"      no test that takes seconds
  python -m tests --hypothesis-profile random      new random examples
"""


def main() -> None:
    """Run the checks in order and stop at the first that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="all examples of every test, before an issue is called resolved",
    )
    asked, further = parser.parse_known_args()
    environment = os.environ | ({ALL: "all"} if asked.all else {})
    for words in (*CHECKS, (*PYTEST, *further)):
        print("+", "python", *words, flush=True)
        code = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, check=False
        ).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
