"""Pools of workers: processes of this machine, or a cluster of Dask or Ray.

All pools take cases and give back rows in the order in which they are done. Which
worker solves which case, and what follows when a worker dies, differs between them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from meshwright.deadline import Deadline, Interrupt
from meshwright.errors import SpecError
from meshwright.planner.options import Options
from meshwright.sweeps.cases import Case, Row, SolveSettings
from meshwright.sweeps.open_choices import OpenChoice
from meshwright.sweeps.rentals import SolveAll, ToSolve, solve_choice
from meshwright.sweeps.worker import solve_case

AHEAD = 2
"""Cases handed out per worker: while one is solved, the next one waits."""


def open_pool(
    backend: str, workers: int, address: str | None
) -> AbstractContextManager[Pool]:
    """Return the pool of a backend, to be entered.

    Raises:
        SpecError: its library is not installed, or nothing answers at the address.
    """
    if backend == "dask":
        return dask_pool(workers, address)
    if backend == "ray":
        return ray_pool(workers, address)
    if address is not None:
        raise SpecError(f"--address {address}: needs --backend dask or ray")
    return process_pool(workers)


class Task(NamedTuple):
    """A case with its key and the settings of its solve."""

    key: str
    case: Case
    settings: SolveSettings

    def failed(self, error: str) -> Row:
        """Return the row of a case whose worker died before it made one."""
        return self.case.row(self.key).model_copy(update={"error": error})


class Pool(ABC):
    """Workers that solve cases; a handle stands for a case that was handed out."""

    workers: int

    @abstractmethod
    def submit(self, task: Task) -> Any:
        """Hand out a case and return its handle."""

    @abstractmethod
    def done(self, handles: list[Any]) -> list[Any]:
        """Wait until a handle is done, and return all that are."""

    @abstractmethod
    def row(self, handle: Any, task: Task) -> Row:
        """Return the row of a handle that is done."""

    def rows(self, tasks: Iterable[Task]) -> Iterator[Row]:
        """Yield the rows of all tasks as they are done."""
        left = iter(tasks)
        flying: list[tuple[Any, Task]] = []
        while True:
            for task in islice(left, AHEAD * self.workers - len(flying)):
                flying.append((self.submit(task), task))
            if not flying:
                return
            done = {id(handle) for handle in self.done([pair[0] for pair in flying])}
            ready = [pair for pair in flying if id(pair[0]) in done]
            flying = [pair for pair in flying if id(pair[0]) not in done]
            for pair in ready:
                yield self.row(*pair)


class InProcessPool(Pool):
    """Solves a case when it is handed out; its handle is a list with the row."""

    workers = 1

    def submit(self, task: Task) -> list[Row]:
        """Solve a case and return its handle."""
        return [solve_case(*task)]

    def done(self, handles: list[list[Row]]) -> list[list[Row]]:
        """Return the first handle; all are done."""
        return handles[:1]

    def row(self, handle: list[Row], _task: Task) -> Row:
        """Return the row of a handle."""
        return handle[0]


ALONE = 2
"""Tries of a case in a process that has no other case."""

DIED = "the process that solves it dies: killed, or out of memory"

PARENT_LOOK_S = 1.0
"""Seconds between two looks of a process at whether its parent still lives."""


class ProcessPool(Pool):
    """Processes that are started anew when one dies.

    A death ends all cases in flight, whichever caused it. Each of them is solved again
    in a new process with no other case; a case whose process dies twice has failed.
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
        time.sleep(PARENT_LOOK_S)
    os._exit(1)


def _alone(task: Task) -> Row:
    """Return the row of a case solved in a process with no other case, in two tries."""
    for _ in range(ALONE):
        alone = executor(1)
        try:
            row: Row = alone.submit(solve_case, *task).result()
            return row
        except BrokenProcessPool:
            continue
        finally:
            alone.shutdown(wait=False, kill_workers=True)
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


def no_library(backend: str) -> SpecError:
    """Return the error that says that the library of a backend is not installed."""
    told = f"needs {backend.capitalize()}: pip install 'meshwright[{backend}]'"
    return SpecError(f"--backend {backend}: {told}")


RAY_RETRIES = 2
"""Further tries of a case whose worker died."""


class RayPool(Pool):
    """Workers of Ray, which tries a case again elsewhere when its worker dies."""

    def __init__(self, ray: Any, workers: int) -> None:
        """Take the module `ray`, connected to a cluster."""
        self._ray = ray
        self._solve = ray.remote(max_retries=RAY_RETRIES)(solve_case)
        self.workers = max(workers, int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, task: Task) -> Any:
        """Hand out a case and return its future."""
        return self._solve.remote(*task)

    def done(self, handles: list[Any]) -> list[Any]:
        """Wait until a future is done, and return all that are."""
        return list(self._ray.wait(handles, num_returns=1)[0])

    def row(self, handle: Any, task: Task) -> Row:
        """Return the row of a future, or the row that says how its workers died."""
        try:
            row: Row = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            return task.failed(f"{type(error).__name__}: {error}")
        return row


@contextmanager
def ray_pool(workers: int, address: str | None) -> Iterator[Pool]:
    """Open a pool on a cluster, or on processes of this machine.

    Raises:
        SpecError: Ray is not installed, or no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise no_library("ray") from None
    here: dict[str, Any] = (
        {} if address else {"num_cpus": workers, "include_dashboard": False}
    )
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **here)
    except (OSError, ValueError) as error:
        raise SpecError(f"--address {address}: no Ray cluster: {error}") from None
    try:
        yield RayPool(ray, workers)
    finally:
        ray.shutdown()


SCHEDULER_WAIT_S = 30
"""Seconds that a scheduler may take to answer."""


class DaskPool(Pool):
    """Workers of Dask, which tries a case again, a few times, when its worker dies."""

    def __init__(self, client: Any, workers: int) -> None:
        """Take a client that is connected to a scheduler."""
        self._client = client
        self.workers = max(workers, sum(client.ncores().values()))

    def submit(self, task: Task) -> Any:
        """Hand out a case and return its future."""
        return self._client.submit(solve_case, *task, pure=False)

    def done(self, handles: list[Any]) -> list[Any]:
        """Wait until a future is done, and return all that are."""
        from distributed import wait

        # The caller may have another client, and must not get this one's events.
        with self._client.as_current():
            return list(wait(handles, return_when="FIRST_COMPLETED").done)

    def row(self, handle: Any, task: Task) -> Row:
        """Return the row of a future, or the row that says how its workers died."""
        error = handle.exception()
        if error is not None:
            return task.failed(f"{type(error).__name__}: {error}")
        row: Row = handle.result()
        return row


@contextmanager
def dask_pool(workers: int, address: str | None) -> Iterator[Pool]:
    """Open a pool on a scheduler, or on processes of this machine.

    Raises:
        SpecError: Dask is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise no_library("dask") from None
    if address is not None:
        try:
            client = Client(address, timeout=SCHEDULER_WAIT_S)
        except (OSError, ValueError) as error:
            raise SpecError(
                f"--address {address}: no Dask scheduler: {error}"
            ) from None
        with client:
            yield DaskPool(client, workers)
        return
    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield DaskPool(client, workers)


STOP_LOOK_S = 0.2
"""Seconds between two looks at whether to end."""


@contextmanager
def rental_pool(
    workers: int | None, options: Options, deadline: Deadline
) -> Iterator[SolveAll]:
    """Yield a function that solves choices in parallel, by default on every core."""
    from joblib import cpu_count

    if (workers or cpu_count()) == 1:
        yield lambda asked: [
            solve_choice(*question, options, deadline.left_s) for question in asked
        ]
        return
    plain = replace(options, interrupt=Interrupt())
    with warnings.catch_warnings():
        # Processes whose memory has grown are replaced; no choice is lost.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
        pool = executor(workers or cpu_count())
        try:
            yield lambda asked: _solved(pool, asked, plain, deadline)
        finally:
            pool.shutdown(wait=False, kill_workers=True)


def _solved(
    pool: Any, asked: list[ToSolve], options: Options, deadline: Deadline
) -> list[OpenChoice]:
    """Return choices with their proofs; a choice that was stopped is undecided."""
    tasks = [
        pool.submit(solve_choice, *question, options, deadline.left_s)
        for question in asked
    ]
    left = set(tasks)
    while left and not deadline.interrupt.is_asked:
        left = wait(left, timeout=STOP_LOOK_S).not_done
    for task, question in zip(tasks, asked, strict=True):
        question.choice.is_stopped = task in left
    return [
        question.choice if task in left else task.result()
        for task, question in zip(tasks, asked, strict=True)
    ]
