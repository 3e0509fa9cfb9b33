"""Tasks that nobody waits for any more leave their place to the next, in any state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from queue import Queue

import pytest

from meshwright.ui import pool as pools
from meshwright.ui.pool import END, Job, Pool, Tell

HANGS_S = 120.0
"""Seconds without any message after which the test itself is given up."""


class Told:
    """The messages of all tasks, in the order in which they came."""

    def __init__(self) -> None:
        self._messages = Queue[tuple[str, str, str]]()

    def by(self, name: str) -> Tell:
        """Return what takes the messages of a task."""

        def tell(kind: str, line: bytes) -> None:
            text = json.loads(line).get("text", "") if line else ""
            self._messages.put((name, kind, text))

        return tell

    def next(self) -> tuple[str, str, str]:
        """Return the next message that is not about places in the queue."""
        while (message := self._messages.get(timeout=HANGS_S))[1] == "queued":
            pass
        return message


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Yield a pool of one process."""
    found = Pool(1, 4, "tests.helpers.endless")
    yield found
    found.close()


def submit(pool: Pool, told: Told, name: str, goes_on: str = "") -> Job:
    return pool.submit({"name": name, "goes_on": goes_on}, told.by(name))


@pytest.mark.parametrize("end", [Pool.drop, Pool.stop])
def test_a_task_ends_when_it_is_told_to(
    pool: Pool, end: Callable[[Pool, Job], None]
) -> None:
    told = Told()
    job = submit(pool, told, "long", "until stopped")
    assert told.next() == ("long", "began", "")
    submit(pool, told, "next")
    end(pool, job)
    if end is Pool.stop:  # Whoever waits hears what there is.
        assert told.next() == ("long", "ended", "")
    assert told.next() == ("long", END, "")
    assert [told.next()[:2] for _ in range(3)] == [
        ("next", "began"), ("next", "ended"), ("next", END),
    ]  # fmt: skip


def test_a_task_that_does_not_listen_ends_with_its_process(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "GRACE_S", 0.1)
    told = Told()
    job = submit(pool, told, "deaf", "for ever")
    assert told.next() == ("deaf", "began", "")
    submit(pool, told, "next")
    pool.drop(job)
    assert told.next() == ("deaf", "failed", "stopped: it took too long")
    assert told.next() == ("deaf", END, "")
    assert told.next() == ("next", "began", "")


def test_a_task_that_waits_never_begins_once_it_is_dropped(pool: Pool) -> None:
    told = Told()
    first = submit(pool, told, "first", "until stopped")
    assert told.next() == ("first", "began", "")
    second = submit(pool, told, "second")
    submit(pool, told, "third")
    pool.drop(second)
    assert told.next()[:2] == ("second", "failed")
    assert told.next() == ("second", END, "")
    pool.drop(first)
    assert told.next() == ("first", END, "")
    assert told.next() == ("third", "began", "")


def test_a_pool_that_is_closed_at_once_leaves_no_process() -> None:
    """Processes are started by threads, which may come to it only afterwards."""
    before = set(active_children())
    for _ in range(5):
        Pool(2, 4, "tests.helpers.endless").close()
    time.sleep(0.5)
    assert set(active_children()) <= before
