"""Runs every check: `python -m tests`. Further words go to pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("importlinter.cli", "lint"),
    ("sphinx", "-q", "-W", "--keep-going", "-E", "docs", "build/docs"),
    ("pytest", "-n", "auto"),
)


def main() -> None:
    """Run the checks in order and stop at the first that fails."""
    for words in CHECKS:
        further = sys.argv[1:] if "pytest" in words else []
        command = [sys.executable, *words, *further]
        print("+", "python", *words, *further, flush=True)
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
