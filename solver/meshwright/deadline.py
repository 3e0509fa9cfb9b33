"""Ends a solve with its best answer so far: once its time is up, or on an interrupt."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Interrupt:
    """Somebody's wish to see the best plan so far."""

    def __init__(self) -> None:
        """Wish for nothing yet."""
        self.is_asked = False
        self.is_heeded = False
        """Whether the running code ends soon once it is asked to."""

    @contextmanager
    def heeded(self, is_heeded: bool = True) -> Iterator[None]:
        """Tell whether what runs inside looks if it was asked to end."""
        before, self.is_heeded = self.is_heeded, is_heeded
        try:
            yield
        finally:
            self.is_heeded = before

    def unless_asked(self, work: Callable[[], T], instead: T) -> T:
        """Return the result of some work, or something else if it is to end first."""
        if self.is_asked:
            return instead
        try:
            with self.heeded(False):
                return work()
        except KeyboardInterrupt:
            if not self.is_asked:
                raise
            return instead


class OutOfTime(Exception):
    """The time is up before there is anything to answer with."""


class Deadline:
    """The time at which a solve ends with its best answer, or before if interrupted."""

    def __init__(
        self, limit_s: float = math.inf, interrupt: Interrupt | None = None
    ) -> None:
        """Begin to wait for so many seconds."""
        self.interrupt = interrupt or Interrupt()
        self._at_s = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, 0 at least."""
        if self.interrupt.is_asked:
            return 0.0
        return max(self._at_s - time.monotonic(), 0.0)

    @property
    def has_passed(self) -> bool:
        """Return whether it is time to end."""
        return self.left_s <= 0

    def check(self) -> None:
        """Go on if there is time.

        Raises:
            OutOfTime: there is none.
        """
        if self.has_passed:
            raise OutOfTime


NEVER = Deadline()
"""A solve may take as long as it needs."""
