"""Once an answer is there, what it was found with is free, without the collector.

Lattices have hundreds of megabytes; a cycle of references holds them for many solves.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import meshwright as mw
from meshwright.planner.candidates import Candidates
from meshwright.planner.rows import Lattice

SPEC = mw.load("gpt2-xl-2xh100-nvlink", mw.Spec)

OPEN = {
    "model": "llama3-8b",
    "cluster": {"topology": "h100-nvlink-2", "count": {"min": 1, "max": 2}},
    "training": {"seq_len": 2048, "global_batch": 16},
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Leave all freeing to counts of references."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> int:
    """Return how many lattices and tables of candidates are in memory.

    By type, since asking an object for its class can run code of other libraries.
    """
    return sum(
        issubclass(type(get_object), Lattice | Candidates)
        for get_object in gc.get_objects()
    )


def solve_open() -> None:
    """Choose the number of machines."""
    question = mw.load(OPEN)
    assert isinstance(question, mw.OpenSpec)
    mw.solve(question)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "ask",
    [
        partial(mw.solve, SPEC),
        partial(mw.solve, SPEC, near=0.05),
        partial(mw.explain, SPEC),
        partial(mw.explain, SPEC, "tp=2,zero=0"),
        solve_open,
    ],
    ids=["solve", "near", "explain", "explain a plan", "open"],
)
def test_no_lattice_outlives_its_answer(ask: Callable[[], object]) -> None:
    before = alive()
    ask()
    assert alive() == before
