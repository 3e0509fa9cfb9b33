"""Handles Ctrl-C: the first ends with the best plan so far, a second ends at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from meshwright.cli.exit_codes import KILLED, UNDECIDED
from meshwright.deadline import Interrupt

SHOW_CURSOR = "\x1b[?25h"
"""Escape sequence that restores a terminal after a spinner."""


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Yield what Ctrl-C asks to end.

    What does not heed it is left at once.

    Raises:
        Exit: it was left before there was anything to show.
    """
    interrupt = Interrupt()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if interrupt.is_asked:
            _end_at_once()
        interrupt.is_asked = True
        if not interrupt.is_heeded:
            raise KeyboardInterrupt

    with _handled_by(handle):
        try:
            yield interrupt
        except KeyboardInterrupt:
            print("stopped: nothing was found yet", file=sys.stderr)
            raise typer.Exit(UNDECIDED) from None


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a function handle Ctrl-C; only the main thread can do so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once() -> None:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), SHOW_CURSOR.encode())
    os._exit(KILLED)
