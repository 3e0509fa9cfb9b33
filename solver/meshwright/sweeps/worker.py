"""Turns one case into one row, whatever happens: the work of a pool's worker."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshwright import __version__
from meshwright.errors import InternalError, MeshwrightError, SpecError
from meshwright.planner.options import Options, tolerance_of
from meshwright.planner.solve import solve
from meshwright.results.outcome import NearMiss, Outcome
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from meshwright.sweeps.cases import Case, Row, SolveSettings, Value, fingerprint
from meshwright.sweeps.metrics import Answer, taken

GRACE_S = 1.0
"""Seconds after its time limit at which a case is stopped by force."""


def solve_case(key: str, case: Case, settings: SolveSettings) -> Row:
    """Return the row of a case; one that cannot be solved has a row that says why."""
    if case.spec is None:
        return case.row(key)
    row = Row(key=key, name=case.name, axes=case.axes, status="failed")
    if settings.version != __version__:
        return _failed(row, f"the worker has meshwright {__version__}")
    if settings.code != fingerprint():
        return _failed(row, f"the worker has other code of meshwright {__version__}")
    limit_s = settings.time_limit_s
    try:
        with (
            memory_limit(settings.memory_limit_gib),
            time_limit(None if limit_s is None else limit_s + GRACE_S),
        ):
            outcome = solve(case.spec, _options(case.spec, settings))
        return row_of(key, case.name, case.axes, case.spec, outcome)
    except TimeUp:
        told = f"stopped after {limit_s:g} s and {GRACE_S:g} s of grace"
        return row.model_copy(update={"status": "unknown", "sentence": told})
    except MemoryError:
        gc.collect()
        return _failed(
            row, f"needs more than {settings.memory_limit_gib} GiB of memory"
        )
    except InternalError as error:
        return _failed(row, f"internal error, please report it: {error}")
    except MeshwrightError as error:
        return _failed(row, str(error))
    except Exception as error:  # one case that fails must not stop the others
        return _failed(row, f"{type(error).__name__}: {error}")


def row_of(
    key: str, name: str, axes: dict[str, Value], spec: Spec, outcome: Outcome
) -> Row:
    """Return the row of a solved spec: its plan and metrics, or why there is none."""
    answer = Answer(spec, outcome)
    fields: dict[str, Any] = {**taken(answer)}
    if outcome.best is not None:
        fields["plan"] = outcome.best.plan
        fields["time_parts"] = outcome.best.time_parts
        fields["memory"] = answer.fullest
        fields["certificate"] = outcome.certificate
    elif outcome.near_miss is not None:
        fields |= _reason(outcome.near_miss)
    return Row(key=key, name=name, axes=axes, status=outcome.status, **fields)


def _reason(miss: NearMiss) -> dict[str, Any]:
    """Return the rules that leave no plan: those that the nearest miss breaks."""
    rules = miss.broken_rules
    return {
        "conflict": tuple(dict.fromkeys(broken.rule for broken in rules)),
        "sentence": rules[0].sentence if rules else "",
    }


def _failed(row: Row, error: str) -> Row:
    return row.model_copy(update={"error": error})


def _options(spec: Spec, settings: SolveSettings) -> Options:
    """Return how to find the recommended plan of a case, and not the fastest beside."""
    limit_s = settings.time_limit_s
    tolerance = tolerance_of(spec, settings.profile)
    return Options(
        time_limit_s=float("inf") if limit_s is None else limit_s,
        seed=settings.seed,
        profile=settings.profile,
        tolerance=tolerance.share,
        tolerance_from=tolerance.source,
        is_doubted=tolerance.share > 0,
        is_brief=True,
    )


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
