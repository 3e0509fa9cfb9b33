"""Limits on the time and memory of one case, in whichever thread it is solved."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.spec.units import GIB

GRACE_S = 1.0
"""Seconds after its time limit at which a case is stopped by force."""

_STATM = Path("/proc/self/statm")


class TimeUp(BaseException):
    """Raised in a case whose time is up; no Exception, so that no code catches it."""


@contextmanager
def time_limit(limit_s: float | None) -> Iterator[None]:
    """Raise TimeUp in the block once a limit has passed."""
    if limit_s is None:
        yield
        return
    thread = threading.get_ident()
    lock, is_over = threading.Lock(), threading.Event()

    def stop() -> None:
        with lock:
            if not is_over.is_set():
                _raise_in(thread, TimeUp)

    timer = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over.set()
        _raise_in(thread, None)
        timer.cancel()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread at its next bytecode; None takes it back."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(error) if error else None
    )


def check_memory_limit(limit_gib: float | None) -> None:
    """Refuse a memory limit where the system cannot enforce it.

    Raises:
        SpecError: this is not Linux.
    """
    if limit_gib is not None and not _STATM.exists():
        raise SpecError("--memory-limit: needs Linux; leave it out")


@contextmanager
def memory_limit(limit_gib: float | None) -> Iterator[None]:
    """Let allocations in the block fail once this process would hold more than a limit.

    The limit is set on address space: what is mapped now, plus the limit, less what is
    resident now.
    """
    if limit_gib is None:
        yield
        return
    import resource

    size, resident = (int(pages) for pages in _STATM.read_text().split()[:2])
    page = resource.getpagesize()
    most = size * page + max(0, int(limit_gib * GIB) - resident * page)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
