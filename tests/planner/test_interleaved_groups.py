"""Interleaved stages with micro-batches that are no multiple of them, or fewer."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planner.solve import solve
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.tiny import tiny_spec
from tests.planner.test_brute_force import compare
from tests.planner.test_recompute_scopes import best

CHUNKS: dict[str, Any] = {"pp": 4, "vpp": 2, "schedule": "1f1b", "micro_batch": 1}


def spec(framework: str, batch: int, memory_gib: float = 6.0, **pins: Any) -> Spec:
    """Return a spec of four GPUs and eight layers."""
    return tiny_spec(framework, memory_gib, 4, {"n_layers": 8}, batch, **pins)


@pytest.mark.parametrize(
    "framework", ["generic", "megatron", "torchtitan", "internevo"]
)
@pytest.mark.parametrize("batch", gate([5, 6], everything=[3, 5, 6, 13]))
@pytest.mark.parametrize("memory_gib", [1.9, 3.3, 3.5, 6.0])
def test_groups_match_brute_force(
    framework: str, batch: int, memory_gib: float
) -> None:
    pins = {**CHUNKS, "vpp": [1, 2], "recompute": ["none", "full"]}
    compare(spec(framework, batch, memory_gib, **pins))


@pytest.mark.parametrize(
    ("framework", "taken"),
    [
        ("generic", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
        ("megatron", [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
        # One round of up to 7, two of 4 to 5, three of 4.
        ("torchtitan", [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]),
        ("internevo", [4, 8, 12]),
        ("nanotron", []),
    ],
)
def test_frameworks_interleave_what_they_have_groups_for(
    framework: str, taken: list[int]
) -> None:
    batches = range(1, 14)
    solved = {n: solve(spec(framework, n, **CHUNKS)).status for n in batches}
    assert [n for n in batches if solved[n] == "optimal"] == taken


def test_thirteen_micro_batches_are_faster_in_chunks() -> None:
    """Groups of 7 and 6: 13 tau and a bubble of 3 tau / 2, not of 3 tau."""
    pins = {**CHUNKS, "recompute": "none"}
    step_s = {}
    for chunks in (1, 2):
        answer = solve(spec("megatron", 13, **{**pins, "vpp": chunks})).best
        assert answer is not None
        assert answer.plan.microbatches == 13
        step_s[chunks] = answer.step_s
    assert step_s[2] < step_s[1]
    assert best(solve(spec("megatron", 13, **{**pins, "vpp": [1, 2]}))).vpp == 2
