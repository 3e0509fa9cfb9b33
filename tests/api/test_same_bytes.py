"""Answers are the same bytes with every version of Python, and in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from math import fsum
from typing import Any

import numpy as np
import pytest

from tests.helpers import summing

ANSWERS = """
import builtins, sys
from tests.helpers import summing

builtins.sum = getattr(summing, sys.argv[1])

import meshwright as mw

for name in ("gpt2-xl-2xh100-nvlink", "llama3-8b-2x4090-pcie"):
    spec = mw.load(name)
    outcome = mw.solve(spec, by_kind=False)
    print(outcome.to_json())
    print(mw.explain(spec).to_json())
    print(mw.compare(spec, {"stages": "pp=2", "tensors": "tp=2"}).to_json())
    if outcome.best:
        print(mw.price(spec, outcome.best.plan).model_dump_json())
        print(mw.simulate(spec, outcome.best.plan, samples=20).model_dump_json())

for name in ("serve-llama3-8b-1xa100", "serve-llama3-70b-2x4090-pcie"):
    serving = mw.load(name)
    print(mw.solve(serving).to_json(), mw.explain(serving).to_json())

lengths = {"training.seq_len": [2048, 4096]}
found = mw.search({"base": "gpt2-xl-2xh100-nvlink", "sweep": lengths}, workers=1)
for row in found.rows:
    print(row.model_dump_json(exclude={"solve_s"}))
"""


def asked(*arguments: str, hashes: str) -> subprocess.Popen[str]:
    """Start a process that answers, and prints what it answers."""
    return subprocess.Popen(
        [sys.executable, "-c", ANSWERS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONHASHSEED": hashes,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )


@pytest.mark.slow
def test_answers_are_the_same_however_python_adds() -> None:
    """Python 3.12 adds floats another way, and hashes of words are drawn anew."""
    started = [
        asked("left_to_right", hashes="1"),
        asked("compensated", hashes="2"),
    ]
    (first, _), (second, _) = told = [one.communicate() for one in started]
    assert [one.returncode for one in started] == [0, 0], told
    assert len(first) > 50_000
    assert first.splitlines() == second.splitlines()


def test_ways_to_add() -> None:
    """In 1 + 2^-53 + 2^-53, each small number alone is lost."""
    few = [1.0, 2**-53, 2**-53]
    assert summing.left_to_right(few) == 1.0
    assert summing.compensated(few) == fsum(few) == 1 + 2**-52
    assert summing.compensated([1, 2, True]) == 4
    assert summing.compensated([(1,), (2,)], ()) == (1, 2)
    assert summing.compensated([0.5, 1, 0.25]) == 1.75


@pytest.mark.parametrize("items", [[0.5], [1, 2.0], [np.float64(1), 1.0]])
def test_our_code_adds_no_floats_by_sum(items: list[float]) -> None:
    ours: dict[str, Any] = {"__name__": "meshwright.any"}
    exec("def added(items): return sum(items)", ours)
    with pytest.raises(AssertionError, match="add floats by math"):
        ours["added"](items)
    with pytest.raises(AssertionError, match="add floats by math"):
        ours["added"](iter(items))
    assert ours["added"](iter([1, 2])) == 3
    assert sum(items) == fsum(items)
