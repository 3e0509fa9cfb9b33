"""Leading dense layers on the first chunks of several interleaved stages."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.check.check import broken_rules
from meshwright.cost.job import make_job
from meshwright.exports.megatron import layout
from meshwright.planner.solve import solve
from meshwright.plans.plan import chunk_layers, first_chunks, most_leading
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.tiny import tiny_spec
from tests.planner.test_brute_force import compare
from tests.planner.test_recompute_scopes import best


def spec(
    framework: str, memory_gib: float, depth: int, leading: int, **pins: Any
) -> Spec:
    """Return a spec whose dense layers are as wide as four of its experts."""
    moe = {"n_experts": 4, "top_k": 2, "d_ff": 1024, "first_dense_layers": leading}
    model = {"n_layers": depth, "d_ff": 4096, "moe": moe}
    pins = {"micro_batch": 1, "tp": 1, **pins}
    return tiny_spec(framework, memory_gib, pins["pp"], model, **pins)


CASES: list[tuple[int, int, dict[str, Any]]] = [
    # Layers, those that lead, pins.
    (8, 3, {"pp": 2, "vpp": 2}),
    (7, 3, {"pp": 2, "vpp": 2}),
    (8, 3, {"pp": 4, "vpp": 2}),
    (7, 2, {"pp": 4, "vpp": 2}),
    (6, 2, {"pp": 3, "vpp": 2}),
    (8, 3, {"pp": 2, "vpp": 2, "schedule": "zb-v"}),
    (7, 3, {"pp": 2, "vpp": 2, "layers": [3, 4]}),
]


@pytest.mark.parametrize("framework", ["megatron", *gate([], everything=["ideal"])])
@pytest.mark.parametrize(("layers", "leading", "pins"), CASES)
@pytest.mark.parametrize("memory_gib", gate([1.6, 6.0], everything=[1.3, 1.6, 2.2, 6]))
def test_plans_match_brute_force(
    framework: str, memory_gib: float, layers: int, leading: int, pins: dict[str, Any]
) -> None:
    is_v = "schedule" in pins
    framework = "torchtitan" if is_v and framework == "megatron" else framework
    compare(spec(framework, memory_gib, layers, leading, **pins))


def test_one_dense_layer_is_in_the_first_chunk_of_each_of_three_stages() -> None:
    found = spec("megatron", 9.0, 8, 3, pp=4, vpp=2, recompute="none")
    priced = solve(found).best
    assert priced is not None
    assert priced.plan.chunk_layers(3) == (1,) * 8
    weights = [stage.parts["weights"] for stage in priced.stages]
    # Experts weigh more than a dense MLP; the first stage has the embedding too.
    assert weights[3] > weights[1] == pytest.approx(weights[2])
    assert weights[0] > weights[1]


def test_a_first_chunk_that_dense_layers_fill_is_the_longest() -> None:
    assert chunk_layers([3, 4], 2) == (1, 2, 2, 2)
    assert chunk_layers([3, 4], 2, leading=3) == (2, 2, 1, 2)
    # One more than a short chunk holds, and no more.
    assert chunk_layers([3, 4], 2, leading=1) == (1, 2, 2, 2)
    assert layout(chunk_layers([3, 4], 2, leading=3)) == "Et*2|t*2|t|t*2L"
    assert first_chunks([9, 8, 8], 4, 3) == [3, 2, 2]


@pytest.mark.parametrize(
    ("layers", "vpp", "most"),
    [
        ([8, 8, 8], 4, 2),
        ([7, 8, 8], 4, 2),
        ([9, 8, 8], 4, 3),
        # The second stage would hold more than the first: the price is that of one.
        ([3, 9, 6], 3, 3),
        # Two chunks hold one layer each.
        ([2, 7, 3], 2, 0),
    ],
)
def test_stages_hold_as_many_dense_layers_as_each_other(
    layers: list[int], vpp: int, most: int
) -> None:
    assert most_leading(layers, vpp, 3) == most


def test_long_steps_spread_them_only_where_asked() -> None:
    """Sixteen micro-batches on two stages have little bubble to save."""
    found = spec("megatron", 9.0, 8, 2, pp=2, recompute="none")
    data = found.model_dump(exclude_unset=True)
    data["training"]["global_batch"] = 16
    assert best(solve(Spec.model_validate(data))).vpp < 4
    pinned = data | {"pins": data["pins"] | {"vpp": 4}}
    plan = best(solve(Spec.model_validate(pinned)))
    assert plan.vpp == 4
    alone = Spec.model_validate(data)
    names = [rule.rule for rule in broken_rules(make_job(alone), plan)]
    assert names == ["leading_tried"]
    untried = data | {"limits": data["limits"] | {"untried": True}}
    lifted = Spec.model_validate(untried)
    assert broken_rules(make_job(lifted), plan) == []
