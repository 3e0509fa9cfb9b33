"""A process of the pool: answers one task after the other until it is told to end."""

from __future__ import annotations

import signal
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from meshwright.deadline import Interrupt
from meshwright.errors import InternalError, MeshwrightError

MOST_BYTES = 6 * 2**30
"""Address space of a process: a solve that needs more fails alone."""

STOP = "stop"
"""What the server sends to end a task with what it has found."""


def work(connection: Connection) -> None:
    """Answer tasks from a connection; this is the whole life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    from meshwright.ui.answering import answer

    tasks: SimpleQueue[tuple[dict[str, Any], Interrupt] | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, tasks), daemon=True).start()
    while (own := tasks.get()) is not None:
        task, interrupt = own
        try:
            answer(task, lambda message: _send(connection, message), interrupt)
        except InternalError as error:
            _send(connection, {"kind": "failed", "text": f"a fault of ours: {error}"})
        except MeshwrightError as error:
            _send(connection, {"kind": "failed", "text": str(error)})
        except MemoryError:
            told = "this question takes more memory than the page gives to one"
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
    except ImportError:  # Windows has no such limit.
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
