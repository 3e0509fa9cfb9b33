"""The pool of processes that solve, and the queue before it; both are bounded."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any

from meshwright.deadline import Interrupt
from meshwright.errors import InternalError, MeshwrightError

Tell = Callable[[str, bytes], None]
"""Takes the kind of a message, and the message as a line of JSON."""

GRACE_S = 3.0
"""Seconds that a task has to end by itself after it was told to stop."""

MOST_S = 120.0
"""Seconds after which a task is ended with its process."""

END = "end"
"""The kind of the last message of a task."""


class BusyError(MeshwrightError):
    """The queue is full."""


class Job:
    """A task in the queue, or under way."""

    def __init__(self, task: dict[str, Any], tell: Tell) -> None:
        """Keep a task and who is told its messages."""
        self.task = task
        self.tell = tell
        self.stop_asked_s: float | None = None
        """When it was told to stop; None while it was not."""
        self.is_dropped = False
        """Whether nobody waits for it any more."""


class Pool:
    """Processes that take jobs in turn, and the jobs that wait."""

    def __init__(
        self, workers: int, most_queued: int, answering: str = "meshwright.ui.answering"
    ) -> None:
        """Start so many threads, each with its process.

        The module `answering` has the function `answer`, which the processes call.
        """
        self._most_queued = most_queued
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._seats = [_Seat(answering) for _ in range(workers)]
        for seat in self._seats:
            threading.Thread(target=self._serve, args=(seat,), daemon=True).start()

    def submit(self, task: dict[str, Any], tell: Tell) -> Job:
        """Put a task into the queue, and tell its place.

        Raises:
            BusyError: the queue is full.
        """
        with self._changed:
            if len(self._queue) >= self._most_queued:
                told = f"busy: {len(self._queue)} questions wait already; try again"
                raise BusyError(told)
            job = Job(task, tell)
            self._queue.append(job)
            tell("queued", _place(len(self._queue)))
            self._changed.notify()
        return job

    def stop(self, job: Job) -> None:
        """Let a job end with its best answer so far; a waiting one ends without."""
        with self._changed:
            job.stop_asked_s = time.monotonic()
            if job in self._queue:
                self._queue.remove(job)
                told = b'{"kind":"failed","text":"stopped before its turn came"}\n'
                job.tell("failed", told)
                job.tell(END, b"")

    def drop(self, job: Job) -> None:
        """Forget a job that nobody waits for any more."""
        job.is_dropped = True
        self.stop(job)

    def close(self) -> None:
        """End all processes."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()
        for seat in self._seats:
            seat.end()

    def _serve(self, seat: _Seat) -> None:
        """Run one job after the other in a process."""
        with suppress(_EndedError):
            seat.start()
        while (job := self._next()) is not None:
            try:
                seat.run(job)
            except Exception:  # A thread that ended would leave jobs without answers.
                told = b'{"kind":"failed","text":"the process of this solve ended"}\n'
                job.tell("failed", told)
                seat.kill()
            job.tell(END, b"")

    def _next(self) -> Job | None:
        with self._changed:
            while not self._queue and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            job = self._queue.popleft()
            for place, waiting in enumerate(self._queue, start=1):
                waiting.tell("queued", _place(place))
            return job


class _EndedError(Exception):
    """A process was asked for after the pool was closed."""


class _Seat:
    """A process, started anew where one was ended."""

    def __init__(self, answering: str) -> None:
        self._answering = answering
        self._starting = threading.Lock()
        self._is_ended = False
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def start(self) -> Connection:
        """Return the connection to the process, which is started where it is gone.

        Raises:
            _EndedError: the pool was closed.
        """
        if self._process is not None and self._process.is_alive():
            assert self._connection is not None
            return self._connection
        with self._starting:
            if self._is_ended:
                raise _EndedError
            context = get_context("spawn")
            here, there = context.Pipe()
            words = (there, self._answering)
            process = context.Process(target=work, args=words, daemon=True)
            process.start()
            there.close()
            self._process, self._connection = process, here
        return here

    def end(self) -> None:
        """End the process for good.

        One that is being started is waited for: it would complain of half of its task.
        """
        with self._starting:
            self._is_ended = True
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def run(self, job: Job) -> None:
        """Pass on the messages of a job until its end, or until it takes too long."""
        connection = self.start()
        connection.send(job.task)
        end_s, is_told = time.monotonic() + MOST_S, False
        while True:
            if connection.poll(0.05):
                kind, line = connection.recv()
                if kind == END:
                    return
                if not job.is_dropped:
                    job.tell(kind, line)
            if job.stop_asked_s is not None and not is_told:
                connection.send(STOP)
                is_told, end_s = True, time.monotonic() + GRACE_S
            if time.monotonic() > end_s:
                self.kill()
                told = b'{"kind":"failed","text":"stopped: it took too long"}\n'
                job.tell("failed", told)
                return


def _place(number: int) -> bytes:
    return f'{{"kind":"queued","position":{number}}}\n'.encode()


MOST_BYTES = 6 * 2**30
"""Address space of a process: a solve that needs more fails alone."""

STOP = "stop"
"""The message with which the server ends a task early; its answer so far counts."""


def work(connection: Connection, answering: str) -> None:
    """Answer tasks from a connection; this is the whole life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    answer = import_module(answering).answer
    tasks: SimpleQueue[tuple[dict[str, Any], Interrupt] | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, tasks), daemon=True).start()
    while (given := tasks.get()) is not None:
        task, interrupt = given
        try:
            answer(task, lambda message: _send(connection, message), interrupt)
        except InternalError as error:
            _send(connection, {"kind": "failed", "text": f"a fault of ours: {error}"})
        except MeshwrightError as error:
            _send(connection, {"kind": "failed", "text": str(error)})
        except MemoryError:
            told = "this question takes more memory than one may have"
            _send(connection, {"kind": "failed", "text": told})
        except Exception as error:
            told = f"a fault of ours: {type(error).__name__}: {error}"
            _send(connection, {"kind": "failed", "text": told})
        _send(connection, {"kind": "end"})


def _listen(connection: Connection, tasks: SimpleQueue[Any]) -> None:
    """Put tasks into the queue, and ask the running one to end where that is sent."""
    interrupt = Interrupt()
    while True:
        try:
            received = connection.recv()
        except (EOFError, OSError):
            tasks.put(None)
            return
        if received == STOP:
            interrupt.is_asked = True
        else:
            interrupt = Interrupt()
            tasks.put((received, interrupt))


def _send(connection: Connection, message: dict[str, Any]) -> None:
    """Send a message as a line of JSON, with its kind and whether it ends a task."""
    from pydantic_core import to_json

    line = to_json(message, inf_nan_mode="null") + b"\n"
    connection.send((message["kind"], line))


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows lacks this limit.
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
