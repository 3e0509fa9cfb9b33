"""Every rule of serving has a deployment that holds it and one that breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.plans.rule import Rule, broken, holding
from meshwright.serving.deployment import RULES, Deployments, ServingRule, serving_rules
from tests.helpers.rows import row as skeleton
from tests.helpers.serving_specs import TINY, serving_spec
from tests.rules.test_legality import spec as training_spec

MOE = {"n_experts": 4, "top_k": 2, "d_ff": 96}


def row(**fields: int) -> Deployments:
    """Return one deployment on the only mesh; fields left out are the plainest."""
    whole = ("tp", "pp", "dp_replicate", "microbatches", "requests", "attention_dp")
    values: dict[str, int] = dict.fromkeys(whole, 1) | {"mesh": 0} | fields
    rates = ("tp_s_per_byte", "tp_latency_s", "pp_s_per_byte", "pp_latency_s")
    columns: dict[str, Any] = {
        name: np.array([value]) for name, value in values.items()
    }
    return Deployments(**columns | {name: np.zeros(1) for name in rates})


ALTERNATING: dict[str, Any] = {
    **TINY,
    "kinds": {"near": {"attention_window": 64}, "all": {}},
    "pattern": ["near", "all"],
}

CASES: dict[str, tuple[dict[str, Any], dict[str, int], dict[str, int], str]] = {
    # rule: (model, a row that holds, a row that breaks it, the numbers it names)
    # 8 query heads and 4 KV heads: on 8 GPUs two share one of these, 3 split heads.
    "heads_divisible": (TINY, {"tp": 4}, {"tp": 3}, "8 heads mod tp 3 = 2"),
    "kv_heads_divisible": (TINY, {"tp": 8}, {"tp": 3}, "4 KV heads mod tp 3 = 1"),
    # d_ff 512, but experts of 96 = 3 x 32: 64 divides the first alone.
    "mlp_divisible": ({**TINY, "moe": MOE}, {"tp": 32}, {"tp": 64}, "d_ff 512, tp 64"),
    "attention_groups": (
        {**TINY, "moe": MOE},
        {"tp": 4, "attention_dp": 4, "requests": 4},
        {"tp": 4, "attention_dp": 4, "requests": 3},
        "attention_dp 4, tp 4, 3 requests in a group",
    ),
    "attention_dp_has_experts": (
        TINY,
        {"tp": 2, "requests": 2},
        {"tp": 2, "attention_dp": 2, "requests": 2},
        "attention_dp 2",
    ),
    "layers_cover_stages": (TINY, {"pp": 7}, {"pp": 8}, "pp 8 for 7 layers"),
    "whole_patterns": (ALTERNATING, {"pp": 1}, {"pp": 2}, "pp 2"),
    "groups_have_requests": (
        TINY,
        {"microbatches": 3, "requests": 3},
        {"microbatches": 4, "requests": 3},
        "4 groups, 3 requests",
    ),
}


def test_every_rule_has_a_case() -> None:
    assert [rule.name for rule in RULES] == list(CASES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_holds_and_breaks_and_says_its_numbers(rule: ServingRule) -> None:
    model, holds, breaks, numbers = CASES[rule.name]
    spec = serving_spec(model)
    assert holding([rule], spec, row(**holds)).tolist() == [True]
    (told,) = broken([rule], spec, row(**breaks))
    assert told.sentence == f"{rule.sentence} ({numbers})"


@pytest.mark.parametrize(
    ("pins", "holds", "breaks", "name"),
    [
        ({"tp": 4}, {"tp": 4}, {"tp": 2}, "tp"),
        ({"pp": {"max": 2}}, {"pp": 2}, {"pp": 3}, "pp"),
        ({"dp_replicate": [1, 2]}, {"dp_replicate": 2}, {"dp_replicate": 3}, ""),
        ({"microbatches": {"min": 2}}, {"microbatches": 2}, {"microbatches": 1}, ""),
        ({"layers": [3, 4]}, {"pp": 2}, {"pp": 1}, "layers"),
        ({"mesh": {"tp": [4]}}, {"mesh": 1}, {"mesh": 0}, "mesh.tp"),
    ],
)
def test_pins_are_rules(
    pins: dict[str, Any], holds: dict[str, int], breaks: dict[str, int], name: str
) -> None:
    spec = serving_spec(TINY, pins=pins)
    # Two meshes of one level, (tp, cp, dp_shard, dp_replicate, pp): tp 1 and tp 4.
    meshes = np.array([[[1]] * 5, [[4], [1], [1], [1], [1]]])
    rules = serving_rules(spec, meshes)[len(RULES) :]
    assert [rule.name for rule in rules] == [f"pin {name or next(iter(pins))}"]
    assert holding(rules, spec, row(**holds)).tolist() == [True]
    (told,) = broken(rules, spec, row(**breaks))
    assert told.sentence.startswith(f"pins.{name}")


def test_pins_come_in_the_order_of_the_fields() -> None:
    pins = {"mesh": {"tp": [1]}, "layers": [7], "microbatches": 1, "pp": 1, "tp": 1}
    rules = serving_rules(serving_spec(TINY, pins=pins), np.ones((1, 5, 1), dtype=int))
    names = [rule.name.removeprefix("pin ") for rule in rules[len(RULES) :]]
    assert names == ["tp", "pp", "microbatches", "layers", "mesh.tp"]


def test_the_numbers_of_a_rule_may_name_any_column() -> None:
    def never(_spec: object, rows: Any) -> Any:
        return np.zeros(len(rows), dtype=bool)

    text = "{microbatches} of {tp}, {tp:03d}, {spec.model.n_layers} layers"
    of_serving = ServingRule("own", "no", "", never, text + ", {requests} requests")
    assert of_serving.told(serving_spec(TINY), row(tp=5, requests=9)) == (
        "no (1 of 5, 005, 7 layers, 9 requests)"
    )
    of_training = Rule("own", "no", "", never, text + ", micro-batch {micro_batch}")
    rows = skeleton(tp=5, microbatches=2, micro_batch=6)
    assert of_training.told(training_spec(), rows) == (
        "no (2 of 5, 005, 12 layers, micro-batch 6)"
    )


def test_a_link_of_just_the_limit_is_fast_enough() -> None:
    """A group that pays 1 / 100e9 s a byte has 100 GB/s to itself."""

    def is_held(least_gb_s: float) -> bool:
        limits = {"tp_min_link_gb_s": least_gb_s}
        spec = serving_spec(TINY, limits=limits)
        rules = serving_rules(spec, np.ones((1, 5, 1), dtype=int))
        assert [rule.name for rule in rules[len(RULES) :]] == ["tp_link_bandwidth"]
        one = row()
        one.tp_s_per_byte[:] = 1 / 100e9
        return bool(holding(rules, spec, one)[0])

    assert is_held(100.0)
    assert not is_held(100.1)
