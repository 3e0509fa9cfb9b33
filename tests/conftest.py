"""One browser for all pages; random tests draw the same examples on every run.

Without a number of its own a test draws 25 in the gate, 100 with `--all`;
`python -m tests --hypothesis-profile random` looks for new examples.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import Phase, settings

from meshwright.__main__ import COLLECTED_AFTER
from tests.helpers.browsing import browser as browser
from tests.helpers.extent import gate
from tests.helpers.kept_answers import answers_kept_for
from tests.helpers.summing import floats_refused

DRAWN = gate(25, everything=100)

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=DRAWN
)
settings.register_profile("random", deadline=None)
# As repeatable, but a failure is not made smaller: for `python -m tests.mutants`.
settings.register_profile(
    "quick", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, nor in what was collected.

    Hardly any is there, and to look takes a fifth of the time. Afterwards it is looked
    for as seldom as by the command line.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(COLLECTED_AFTER)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Share proofs among the tests of some rooms, and among their fixtures."""
    with answers_kept_for(item.path):
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def any_width() -> Iterator[None]:
    """Let commands print as for a pipe: workers of pytest-xdist have a width."""
    width = os.environ.pop("COLUMNS", None)
    yield
    if width is not None:
        os.environ["COLUMNS"] = width


@pytest.fixture(scope="session", autouse=True)
def one_way_to_add() -> Iterator[None]:
    """Refuse sums of floats whose last digits depend on the version of Python."""
    with floats_refused():
        yield


@pytest.fixture
def kept_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches share processes, each of which loads libraries for a second.

    Not for tests of how processes start, die or are ended.
    """
    from tests.helpers.searches import kept_for

    monkeypatch.setattr("meshwright.sweeps.pools.executor", kept_for)
