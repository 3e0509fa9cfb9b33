"""Errors of the command line: exit codes, messages cut to a screen, closed streams."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from meshwright import __version__
from meshwright.escape import printable, printable_lines

FOUND = 0
"""A plan was found, or fits."""

NONE_FITS = 1

BAD_INPUT = 2

UNDECIDED = 3
"""Stopped by a time limit or Ctrl-C; the best plan so far is printed, if any."""

FAULT = 4
"""A fault of Meshwright, not of its input."""

KILLED = 130
"""A second Ctrl-C; 128 + SIGINT, as shells have it."""

UNREAD = 1
"""Output goes to a closed pipe; the code that click uses."""

OF_STATUS = {
    "optimal": FOUND,
    "feasible": FOUND,
    "infeasible": NONE_FITS,
    "unknown": UNDECIDED,
}

IN_WORDS = (
    f"Exit codes: {FOUND} a plan was found or fits, {NONE_FITS} none fits, "
    f"{BAD_INPUT} bad input, {UNDECIDED} stopped by a time limit or Ctrl-C before "
    f"that was decided, {FAULT} a fault of Meshwright."
)

MOST_LINES = 20

LONGEST_LINE = 1_900
"""Most characters of a line: a terminal of 80 columns shows them in 24 lines."""

MOST_CHARACTERS = 4_000
"""Forty lines of a terminal of 100 columns: ten wrong fields, each with its line."""


def complain(text: str) -> None:
    """Print a message, cut to a screen, with invisible characters escaped.

    If stderr cannot be written either, only the exit code tells of the error.
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


UsageError: Any = typer.BadParameter.__base__
"""The error of click, or of the copy of click inside typer."""

MEANT = {
    "estimate": "explain", "fit": "explain", "fits": "explain", "memory": "explain",
    "why": "explain", "judge": "explain", "plan": "solve", "optimize": "solve",
    "recommend": "solve", "tune": "solve", "serve": "solve", "convert": "import",
    "parse": "import", "validate": "check", "lint": "check", "preflight": "check",
    "doctor": "diagnose", "debug": "diagnose", "oom": "diagnose", "sweep": "search",
    "new": "init", "diff": "compare", "launch": "export", "generate": "export",
}  # fmt: skip
"""Words that other tools have for our commands."""


class Commands(TyperGroup):
    """A group of commands whose usage errors are at most a screen, all visible."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a word; of other tools' words say ours."""
        if (word := next(iter(args), "")) in MEANT:
            told = f"No such command {word!r}. Did you mean {MEANT[word]!r}?"
            raise UsageError(told, ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *words: Any, **more: Any) -> Any:
        """Read the options before the command."""
        with _seen():
            return super().make_context(*words, **more)

    def invoke(self, ctx: Any) -> Any:
        """Read the words of the command, and run it."""
        with _seen():
            return super().invoke(ctx)


@contextmanager
def _seen() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        error.message = a_screen_of(printable(error.message))
        # Commands that are misspelt have possibilities too.
        if getattr(error, "possibilities", None) and hasattr(error, "option_name"):
            error.possibilities = _begun(error) or error.possibilities
        raise


def _begun(error: Any) -> list[str]:
    """Return the options that begin with the word that was typed for one."""
    typed, context = str(error.option_name), error.ctx
    words = [
        word
        for one in (context.command.params if context is not None else ())
        for word in one.opts
    ]
    return sorted(word for word in words if word.startswith(typed))


OUT_OF_OUR_HANDS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EPIPE,
    errno.ENXIO, errno.ENODEV, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
}  # fmt: skip
"""Errors of disks, devices and system limits, which are no fault of Meshwright."""


def open_closed() -> None:
    """Open the standard streams that were closed before the start, on nothing.

    Python has None for them; the next file that is opened would take their numbers.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def leave_unwritten() -> None:
    """Drop text that stdout has not taken: writing it would fail again at the end."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
