"""Progress of a command on stderr, the time that is left, and Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from meshwright.cli.errors import KILLED, UNDECIDED
from meshwright.deadline import Interrupt
from meshwright.escape import printable

_COUNT = re.compile(r"([\d,]+) of ([\d,]+)")

_COUNTED_DOWN = ("to bound", "left")
"""Last words of lines whose count goes down to 0."""

LEAST_RATE_S = 1.0
"""Seconds before a rate is used to estimate the time left."""


class TimeLeft:
    """Follows the counts in lines of progress, for example `3 of 40 cases`."""

    def __init__(self) -> None:
        """Start without a count."""
        self._whole = 0
        self._first = 0.0
        self._since_s = 0.0

    def seconds(self, text: str, now_s: float) -> float | None:
        """Return the seconds left by the rate so far; None if there is none yet.

        A count of something else, or one that falls back, starts anew.
        """
        found = _COUNT.search(text)
        if found is None:
            self._whole = 0
            return None
        count, whole = (int(number.replace(",", "")) for number in found.groups())
        done = float(whole - count if text.endswith(_COUNTED_DOWN) else count)
        if whole != self._whole or done < self._first:
            self._whole, self._first, self._since_s = whole, done, now_s
        passed_s = now_s - self._since_s
        if done <= self._first or passed_s < LEAST_RATE_S:
            return None
        return passed_s * (whole - done) / (done - self._first)


def duration_text(seconds: float) -> str:
    """Return seconds as text, rounded as far as an estimate deserves."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


DELAY_S = 1.0
"""Seconds before progress is shown."""


class Progress:
    """A spinner on a terminal, single lines elsewhere; silent for the first second.

    If the text has a count, the spinner says how much time is left.
    """

    def __init__(self) -> None:
        """Prepare the timer that starts to show progress."""
        self._text = ""
        self._left = TimeLeft()
        self._left_s: float | None = None
        self._status: Any = None
        self._is_late = False
        self._is_over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(DELAY_S, self._start)
        self._timer.daemon = True

    def say(self, text: str) -> None:
        """Set the text that is shown."""
        with self._lock:
            self._text = printable(text)
            self._left_s = self._left.seconds(self._text, time.monotonic())
            if self._status is not None:
                self._status.update(self._shown)
            elif self._is_late:
                print(self._text, file=sys.stderr)

    @property
    def _shown(self) -> Any:
        """Return the text for rich, which reads markup in a plain string."""
        from rich.text import Text

        told = "" if self._left_s is None else f", {duration_text(self._left_s)} left"
        return Text(self._text + told)

    def _start(self) -> None:
        """Begin to show progress, unless the command has ended."""
        with self._lock:
            if self._is_over:
                return
            self._is_late = True
            if not sys.stderr.isatty():
                print(self._text, file=sys.stderr)
                return
            from rich.console import Console

            self._status = Console(stderr=True).status(self._shown)
            self._status.start()

    def __enter__(self) -> Progress:
        """Start the timer."""
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._status is not None:
                self._status.stop()


SHOW_CURSOR = "\x1b[?25h"
"""Escape sequence that restores a terminal after a spinner."""


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Yield the interrupt that the first Ctrl-C sets.

    Code that does not look at the interrupt is ended at once.

    Raises:
        Exit: it was ended before there was anything to show.
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
