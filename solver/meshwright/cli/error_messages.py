"""Error messages on stderr, cut to at most a screen."""

from __future__ import annotations

import contextlib
import platform
import shlex
import sys
import tempfile
import traceback
from pathlib import Path

from meshwright import __version__
from meshwright.escape import printable, printable_lines

MOST_LINES = 20

LONGEST_LINE = 1_900
"""Most characters of a line: a terminal of 80 columns shows them in 24 lines."""

MOST_CHARACTERS = 4_000
"""Forty lines of a terminal of 100 columns: ten wrong fields, each with its line."""


def complain(text: str) -> None:
    """Print a message, cut to a screen, with invisible characters escaped.

    Where stderr cannot be written either, the exit code is all that is told.
    """
    with contextlib.suppress(OSError):
        print(a_screen_of(printable_lines(text)), file=sys.stderr)


def a_screen_of(text: str) -> str:
    """Return the first screen of a text, and how many characters are left out."""
    lines = text.splitlines()
    shown = "\n".join(line[:LONGEST_LINE] for line in lines[:MOST_LINES])
    shown = shown[:MOST_CHARACTERS]
    left = sum(map(len, lines)) - len(shown.replace("\n", ""))
    return f"{shown.rstrip()}\n... and {left:,} more characters" if left > 0 else shown


def complain_of_a_fault(error: Exception) -> None:
    """Print that Meshwright is at fault, where, and what to report."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
    complain(f"internal error: {type(error).__name__}: {error} ({where})")
    circumstances = _circumstances()
    path = _written("".join(traceback.format_exception(error)) + circumstances + "\n")
    with contextlib.suppress(OSError):
        print(
            "This is a fault of Meshwright's, not of what it was given. Please report "
            f"it with the spec,\nthe traceback in {path}, and this:\n{circumstances}",
            file=sys.stderr,
        )


def _circumstances() -> str:
    """Return version, platform and command, which reproduce the fault."""
    words = sys.argv[1:]
    seed = "" if any(word.startswith("--seed") for word in words) else ", seed 0"
    python = f"Python {platform.python_version()} on {platform.system()}"
    command = a_screen_of(printable(shlex.join(["meshwright", *words])))
    return f"meshwright {__version__}, {python}; command: {command}{seed}"


def _written(text: str) -> str:
    """Return the name of a new file with a text; the text, if none can be written."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="meshwright-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:
        return f"these lines:\n{text}"
    return file.name
