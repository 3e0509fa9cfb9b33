"""Processes of this machine, by joblib's executor."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from meshwright.sweeps.pools import Pool, Task
from meshwright.sweeps.row import Row
from meshwright.sweeps.worker import solve_case

ALONE = 2
"""Tries of a case in a process that has no other case."""

DIED = "the process that solves it dies: killed, or out of memory"

LOOK_S = 1.0
"""Seconds between two looks of a process at whether its parent still lives."""


class ProcessPool(Pool):
    """Processes that are started anew when one dies.

    A death ends all cases in flight, whichever caused it. Each of them is solved again
    in a process of its own; a case whose process dies twice there has failed.
    """

    def __init__(self, workers: int) -> None:
        """Start the processes."""
        self.workers = workers
        self._executor = executor(workers)

    def submit(self, task: Task) -> Future[Row]:
        """Hand out a case and return its future."""
        try:
            return self._submitted(task)
        except BrokenProcessPool:
            self.kill()
            self._executor = executor(self.workers)
            return self._submitted(task)

    def _submitted(self, task: Task) -> Future[Row]:
        future: Future[Row] = self._executor.submit(solve_case, *task)
        return future

    def done(self, handles: list[Future[Row]]) -> list[Future[Row]]:
        """Wait until a future is done, and return all that are."""
        finished, _ = wait(handles, return_when=FIRST_COMPLETED)
        return list(finished)

    def row(self, handle: Future[Row], task: Task) -> Row:
        """Return the row of a future; if its process died, that of a second try."""
        try:
            return handle.result()
        except BrokenProcessPool:
            return _alone(task)

    def close(self) -> None:
        """End all processes, which have nothing left to do."""
        self._executor.shutdown(wait=True)

    def kill(self) -> None:
        """End all processes at once."""
        self._executor.shutdown(wait=False, kill_workers=True)


def executor(workers: int) -> Any:
    """Return processes that leave Ctrl-C to this one, and end when it ends."""
    from joblib.externals.loky import ProcessPoolExecutor

    threads = {"OMP_NUM_THREADS": "1"}
    return ProcessPoolExecutor(
        workers, timeout=None, initializer=_begin, initargs=(os.getpid(),), env=threads
    )


def _begin(parent: int) -> None:
    """Leave Ctrl-C to the parent process, and end this one when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def _alone(task: Task) -> Row:
    """Return the row of a case solved in a process of its own, in two tries."""
    for _ in range(ALONE):
        own = executor(1)
        try:
            row: Row = own.submit(solve_case, *task).result()
            return row
        except BrokenProcessPool:
            continue
        finally:
            own.shutdown(wait=False, kill_workers=True)
    return task.failed(DIED)


@contextmanager
def process_pool(workers: int) -> Iterator[Pool]:
    """Open a pool of processes."""
    with warnings.catch_warnings():
        # Processes whose memory has grown are replaced; no case is lost.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
        pool = ProcessPool(workers)
        try:
            yield pool
        except BaseException:
            pool.kill()
            raise
        pool.close()
