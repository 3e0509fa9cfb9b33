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
    ("pytest", "-n", "auto"),
)


def main() -> None:
    """Run the checks in order and stop at the first that fails."""
    for tool, *words in CHECKS:
        further = sys.argv[1:] if tool == "pytest" else []
        command = [sys.executable, "-m", tool, *words, *further]
        print("+", " ".join([tool, *words, *further]), flush=True)
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
