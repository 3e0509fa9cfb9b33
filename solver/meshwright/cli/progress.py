"""Progress of a command on stderr, once it takes more than a second."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from meshwright.cli.time_left import TimeLeft, duration_text
from meshwright.escape import printable

DELAY_S = 1.0
"""Seconds before progress is shown."""


class Progress:
    """A spinner on a terminal, single lines elsewhere; silent for the first second.

    Where what is done is counted, the spinner says how much time is left.
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
        """Set the text that says what is being done."""
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
