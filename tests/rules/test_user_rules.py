"""Rules of the user on skeletons: cut where they cannot hold, kept where they may."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright.check.check import broken_rules, check, plan_values
from meshwright.cost.job import make_job
from meshwright.planner.degrees import degree_rows
from meshwright.planner.solve import solve
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.rule_truth import at_least, rule_truth
from meshwright.rules.user_rules import (
    BUBBLE,
    ON_DEGREES,
    RowValues,
    family_may_keep,
    memory_cap_gib,
    parts_asked,
    step_may_keep,
    user_degree_rules,
    user_plan_rules,
)
from meshwright.spec.spec import Spec

CAPPED = "tp > 0 and max(memory_gib) <= 60"

DEGREES = [[1, 1, 1, 1, 2], [2, 1, 1, 1, 1], [1, 1, 2, 1, 4]]
"""tp, cp, dp_shard, dp_replicate, pp."""


def spec(*rules: str) -> Spec:
    return mw.load("llama3-8b-2xh100-nvlink", mw.Spec, rules=rules)


def rows() -> Skeletons:
    return degree_rows(np.array(DEGREES))


def may_and_must(text: str, of: Skeletons) -> tuple[list[int], list[int]]:
    """Return in which rows a rule may hold, and in which it must."""
    asked = spec(text)
    truth = rule_truth(asked.rules[0].tree, RowValues(asked, of))
    may, must = (np.broadcast_to(one, len(of)) for one in (truth.may, truth.must))
    return may.astype(int).tolist(), must.astype(int).tolist()


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
        # A stage has up to all 32 layers, and any memory.
        ("layers[0] <= 32", [1, 1, 1], [1, 1, 1]),
        ("recompute_layers[1] <= 32", [1, 0, 1], [1, 0, 1]),
        ("memory_gib[0] <= 32", [1, 1, 1], [0, 0, 0]),
        ("max(memory_gib) <= 70", [1, 1, 1], [0, 0, 0]),
        ("max(memory_gib) <= 70 or tp == 2", [1, 1, 1], [0, 1, 0]),
        ("parts.dp < 0", [0, 0, 0], [0, 0, 0]),
        ("recompute == 'none'", [1, 1, 1], [1, 1, 1]),
        ("sequence_parallel", [0, 0, 0], [0, 0, 0]),
        ("sequence_parallel == false", [1, 1, 1], [1, 1, 1]),
        ("gpus % 2 == 0 and max(tp, pp) == 2", [1, 1, 0], [1, 1, 0]),
        ("sequence_parallel != false", [0, 0, 0], [0, 0, 0]),
        ("recompute != 'none'", [0, 0, 0], [0, 0, 0]),
        ("tp * pp - 4 >= 0", [0, 0, 1], [0, 0, 1]),
        ("tp % 2 == 1", [1, 0, 1], [1, 0, 1]),
        ("sum(tp, pp, cp) == 4", [1, 1, 0], [1, 1, 0]),
        ("min(tp, pp, 3) > 1", [0, 0, 0], [0, 0, 0]),
        ("max(tp / (pp - 2), 1) < 9", [0, 1, 1], [0, 1, 1]),
        # The largest of 2 stages has 16 to 31 layers, the least 1 to 16.
        ("max(layers) == 16", [1, 0, 1], [0, 0, 0]),
        ("max(layers) != 16", [1, 1, 1], [0, 1, 0]),
        ("max(layers) != 32", [1, 0, 1], [1, 0, 1]),
        ("max(layers) - min(layers) >= 1", [1, 0, 1], [0, 0, 0]),
        ("max(layers) - min(layers) <= 30", [1, 1, 1], [1, 1, 1]),
        ("-2 * max(layers) < -32", [1, 1, 1], [0, 1, 0]),
        ("-2 * max(layers) >= -62", [1, 0, 1], [1, 0, 1]),
        ("max(layers) / 2 > 8", [1, 1, 1], [0, 1, 0]),
        ("max(layers) / 2 < 15.6", [1, 0, 1], [1, 0, 1]),
        ("max(layers) % 2 == 0", [1, 1, 1], [0, 1, 0]),
        ("max(layers) % 2 < 9", [1, 1, 1], [0, 1, 0]),
        # Memory is open, and may be as much as is taken away from it.
        ("gpus / (max(memory_gib) - 40) > 1", [1, 1, 1], [0, 0, 0]),
        ("gpus / (max(memory_gib) - 40) < -1", [1, 1, 1], [0, 0, 0]),
        ("max(memory_gib - 70) <= 0", [1, 1, 1], [0, 0, 0]),
        ("max(70 - memory_gib) >= 0", [1, 1, 1], [0, 0, 0]),
        ("min(-memory_gib) > 0 or tp == 2", [1, 1, 1], [0, 1, 0]),
    ],
)
def test_bounds_say_what_may_and_what_must_hold(
    text: str, may: list[int], must: list[int]
) -> None:
    assert may_and_must(text, rows()) == (may, must)


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("step_s <= 2.5", [1, 0, 1]),
        # 32 sequences of 8,192 tokens in 2, 4 and 1 s, on 2 GPUs of 3.99 USD an hour.
        ("tokens_per_s >= 131_000", [1, 0, 1]),
        ("tokens_per_s_per_gpu >= 131_000", [0, 0, 1]),
        ("usd_per_mtoken <= 0.017", [1, 0, 1]),
        ("usd_per_mtoken <= 0.0085", [0, 0, 1]),
    ],
)
def test_no_step_is_shorter_than_its_bound(text: str, may: list[int]) -> None:
    found = spec(text)
    values = RowValues(found, rows(), np.array([2.0, 4.0, 1.0]))
    truth = rule_truth(found.rules[0].tree, values)
    assert truth.may.tolist() == [bool(one) for one in may]


@pytest.mark.parametrize(
    ("text", "may", "must"),
    [
        # 32 layers on three stages: at least 11 on one, at most 10 on another.
        ("max(layers) >= 11", [1, 1], [1, 1]),
        ("max(layers) <= 10", [0, 0], [0, 0]),
        ("min(layers) <= 10", [0, 1], [0, 1]),
        ("min(layers) >= 11", [1, 0], [1, 0]),
        # Nothing waits without a pipeline, and something does with one.
        ("parts.bubble == 0", [1, 0], [1, 0]),
        ("parts.bubble > 0", [0, 1], [0, 1]),
    ],
)
def test_stages_that_do_not_divide_the_layers(
    text: str, may: list[int], must: list[int]
) -> None:
    one_and_three = degree_rows(np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 3]]))
    assert may_and_must(text, one_and_three) == (may, must)


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("tp * step_s <= 3", [1, 0, 1]),
        # Others of a family recompute or offload, whatever its first one does.
        ("recompute != 'none' and step_s > 0", [1, 1, 1]),
        ("offload != 'none' and step_s > 0", [1, 1, 1]),
        ("sum(recompute_layers) > 0", [1, 1, 1]),
        ("parts.bubble <= 0.2", [1, 1, 0]),
    ],
)
def test_a_family_is_refused_by_what_all_of_it_share(text: str, may: list[int]) -> None:
    bubble_s = {BUBBLE: at_least(np.array([0.1, 0.2, 0.3]))}
    kept = family_may_keep(spec(text), rows(), np.array([2.0, 4.0, 1.0]), bubble_s)
    assert kept.tolist() == [bool(one) for one in may]


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("step_s <= 2", True),
        ("step_s < 2", False),
        ("tokens_per_s > 131_073", False),
        # Whether plans have what these ask for is not a matter of steps.
        ("step_s < 2 or tp == 2", True),
        ("tp == 2", True),
    ],
)
def test_a_step_may_keep_what_a_rule_asks_of_steps(text: str, may: bool) -> None:
    assert step_may_keep(spec(text), 2.0) == may


@pytest.mark.parametrize(
    ("text", "is_of_degrees"),
    [
        ("tp * pp <= 4", True),
        (" + ".join(sorted(ON_DEGREES - {"layers"})) + " + max(layers) > 9", True),
        ("tp <= 4 or zero == 1", False),
        ("max(memory_gib) <= 60", False),
    ],
)
def test_a_rule_is_of_degrees_or_of_plans(text: str, is_of_degrees: bool) -> None:
    found = spec(text)
    of_degrees, of_plans = user_degree_rules(found), user_plan_rules(found)
    assert (len(of_degrees), len(of_plans)) == (is_of_degrees, not is_of_degrees)


def test_parts_of_a_step_are_asked_for_by_the_rules_that_name_them() -> None:
    assert parts_asked(spec("parts.dp + parts.tp < step_s / 2 and pp == 1")) == {
        "parts.dp",
        "parts.tp",
    }


def test_a_rule_on_the_fullest_gpu_caps_memory() -> None:
    caps = [memory_cap_gib(spec(text)) for text in (CAPPED, "50 > max(memory_gib)")]
    assert caps == pytest.approx([60, 50], rel=1e-4)
    assert caps[0] > 60
    assert memory_cap_gib(spec("max(memory_gib) <= 60 or tp == 1")) == np.inf


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("max(2 * layers) <= 64", True),
        ("max(2 * layers) <= 63", False),
        ("min(-layers) >= -31", False),
        ("sum(layers + layers) == 64", True),
        ("max(layers - pp) < 31", False),
        ("min(layers % 5) == 2", True),
    ],
)
def test_the_check_of_a_plan_knows_what_every_stage_has(
    text: str, is_kept: bool
) -> None:
    """32 layers on one stage."""
    best = solve(spec("pp == 1")).best
    assert best is not None
    told = [rule.rule for rule in broken_rules(make_job(spec(text)), best.plan)]
    assert len(told) == (not is_kept)


@pytest.mark.parametrize(
    ("text", "need", "have", "arithmetic"),
    [
        ("layers[0] < 31", 32, 31, "layers[0] 32"),
        ("31 > max(layers)", 32, 31, "max(layers) 32"),
        ("40 <= max(layers)", 40, 32, "max(layers) 32"),
        ("10 < max(layers) < 20", None, None, "max(layers) 32"),
        ("max(layers) == 3", None, None, "max(layers) 32"),
        ("recompute == 'full' or pp > 1", None, None, "recompute none, pp 1"),
        # There is one stage, and no link of this name.
        ("layers[-1] > 40", 40, 32, "layers[-1] 32"),
        ("layers[1] >= 1", None, None, "layers[1] missing"),
        ("layers[-2] >= 1", None, None, "layers[-2] missing"),
        ("links['none'] < 1", None, None, "links['none'] missing"),
    ],
)
def test_a_broken_rule_is_told_with_what_it_compares(
    text: str, need: float | None, have: float | None, arithmetic: str
) -> None:
    best = solve(spec("pp == 1", "recompute == 'none'")).best
    assert best is not None
    (rule,) = broken_rules(make_job(spec(text)), best.plan)
    assert (rule.need, rule.have, rule.arithmetic) == (need, have, arithmetic)


def test_a_link_is_as_busy_as_on_the_stage_that_uses_it_most() -> None:
    """Stages in the middle hold no embedding, whose sums the same links carry."""
    asked = mw.load("llama2-13b-8xa100", mw.Spec, pins=["tp=2", "pp=4"])
    best, job = solve(asked).best, make_job(asked)
    assert best is not None
    busiest = float(plan_values(job, best.plan).stages["links"].max())
    assert busiest == pytest.approx(check(job, best.plan).link_utilisation, rel=1e-9)
    for share, is_broken in ((0.9 * busiest, True), (busiest, False)):
        limits = asked.limits.model_copy(update={"max_link_utilisation": share})
        limited = make_job(asked.model_copy(update={"limits": limits}))
        broken = broken_rules(limited, best.plan)
        assert [one.have for one in broken] == [share] * is_broken
        assert all(one.need == pytest.approx(busiest) for one in broken)
