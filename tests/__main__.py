"""Runs every check: `python -m tests`. Further words go to pytest.

`python -m tests --fast` leaves out the tests that are marked slow: random specs, brute
force, fuzzing, browsers and killed processes. It takes about two minutes on two cores.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as lint; lint()"

CHECKS = (
    ("-m", "ruff", "check", "."),
    ("-m", "ruff", "format", "--check", "."),
    ("-m", "mypy"),
    ("-c", LINT_IMPORTS, "--no-logo"),
    ("-m", "sphinx", "-q", "-W", "--keep-going", "-E", "docs", "build/docs"),
)

PYTEST = ("-m", "pytest", "-n", "auto")

FAST = ("-m", "not slow")


def main() -> None:
    """Run the checks in order and stop at the first that fails."""
    asked = sys.argv[1:]
    is_fast = "--fast" in asked
    further = [word for word in asked if word != "--fast"]
    pytest = (*PYTEST, *(FAST if is_fast else ()), *further)
    for words in (*CHECKS, pytest):
        print("+", "python", *words, flush=True)
        code = subprocess.run(
            [sys.executable, *words], cwd=ROOT, check=False
        ).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
