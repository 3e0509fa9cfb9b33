"""Rules of the user on skeletons: cut where they cannot hold, kept where they may."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright.planner.degrees import degree_rows
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.rule_truth import rule_truth
from meshwright.rules.user_rules import RowValues, memory_cap_gib
from meshwright.spec.spec import Spec

CAPPED = "tp > 0 and max(memory_gib) <= 60"

DEGREES = [[1, 1, 1, 1, 2], [2, 1, 1, 1, 1], [1, 1, 2, 1, 4]]
"""tp, cp, dp_shard, dp_replicate, pp."""


def spec(*rules: str) -> Spec:
    return mw.load("llama3-8b-2xh100-nvlink", mw.Spec, rules=rules)


def rows() -> Skeletons:
    return degree_rows(np.array(DEGREES))


@pytest.mark.parametrize(
    ("text", "may", "must"),
    [
        ("tp <= 1", [1, 0, 1], [1, 0, 1]),
        ("dp * pp == 8 or tp == 2", [0, 1, 1], [0, 1, 1]),
        ("pp in (1, 4)", [0, 1, 1], [0, 1, 1]),
        ("pp not in (1, 4)", [1, 0, 0], [1, 0, 0]),
        ("1 < pp < 3", [1, 0, 0], [1, 0, 0]),
        # A division by zero does not hold, so that its opposite does.
        ("tp / (pp - 2) < 9", [0, 1, 1], [0, 1, 1]),
        ("not tp / (pp - 2) < 9", [1, 0, 0], [1, 0, 0]),
        # 32 layers: at least 16, 32 and 8 on the largest of 2, 1 and 4 stages.
        ("max(layers) < 16", [0, 0, 1], [0, 0, 0]),
        ("max(layers) <= 31", [1, 0, 1], [1, 0, 1]),
        ("min(layers) > 8", [1, 1, 0], [0, 1, 0]),
        ("sum(layers) == 32", [1, 1, 1], [1, 1, 1]),
        ("layers[2] >= 1", [0, 0, 1], [0, 0, 1]),
        ("max(memory_gib) <= 70", [1, 1, 1], [0, 0, 0]),
        ("max(memory_gib) <= 70 or tp == 2", [1, 1, 1], [0, 1, 0]),
        ("parts.dp < 0", [0, 0, 0], [0, 0, 0]),
        ("recompute == 'none'", [1, 1, 1], [1, 1, 1]),
        ("sequence_parallel", [0, 0, 0], [0, 0, 0]),
        ("sequence_parallel == false", [1, 1, 1], [1, 1, 1]),
        ("gpus % 2 == 0 and max(tp, pp) == 2", [1, 1, 0], [1, 1, 0]),
    ],
)
def test_bounds_say_what_may_and_what_must_hold(
    text: str, may: list[int], must: list[int]
) -> None:
    own = spec(text)
    truth = rule_truth(own.rules[0].tree, RowValues(own, rows()))
    assert np.broadcast_to(truth.may, 3).tolist() == [bool(one) for one in may]
    assert np.broadcast_to(truth.must, 3).tolist() == [bool(one) for one in must]


def test_a_rule_on_the_fullest_gpu_caps_memory() -> None:
    caps = [memory_cap_gib(spec(text)) for text in (CAPPED, "50 > max(memory_gib)")]
    assert caps == pytest.approx([60, 50], rel=1e-4)
    assert caps[0] > 60
    assert memory_cap_gib(spec("max(memory_gib) <= 60 or tp == 1")) == np.inf
