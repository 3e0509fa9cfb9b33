"""Interleaved stages whose chunks differ by a layer."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.check.check import broken_rules
from meshwright.cost.job import make_job
from meshwright.planner.families import find_families, least_bubbles
from meshwright.planner.integer_costs import TICK_S
from meshwright.planner.options import Options
from meshwright.planner.rows import build_lattice
from meshwright.planner.solve import solve
from meshwright.planner.stages import has_even_split
from meshwright.plans.plan import Stage
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.rows import row
from tests.helpers.tiny import tiny_spec
from tests.planner.test_brute_force import compare
from tests.planner.test_recompute_scopes import best, counts, deeper, spec

CHUNKS = {"vpp": 2, "micro_batch": 1}

PLACES = ((1, 1), (2, 1), (2, 2), (5, 2))
"""Stages, and chunks of each."""


@pytest.mark.parametrize("framework", ["generic", "ideal", "megatron", "torchtitan"])
@pytest.mark.parametrize(
    "memory_gib", gate([2.5, 3.2, 6.0], everything=[2.5, 3.0, 3.2, 3.4, 6.0])
)
def test_uneven_chunks_match_brute_force(framework: str, memory_gib: float) -> None:
    compare(deeper(spec(framework, memory_gib, **CHUNKS), 7))


def test_a_stage_has_a_layer_less_where_the_framework_takes_it() -> None:
    """Seven layers on two stages of two chunks are 4 and 3: three chunks of 2."""
    plan = best(solve(deeper(spec("megatron", 6.0, **CHUNKS), 7)))
    assert sorted(count for count, _ in counts(plan)) == [3, 4]
    assert sorted(plan.chunk_layers()) == [1, 2, 2, 2]
    # A stage's first chunk is the short one.
    assert 1 in plan.chunk_layers()[:2]
    assert solve(deeper(spec("nanotron", 6.0, **CHUNKS), 7)).status == "infeasible"


@pytest.mark.parametrize(
    ("layers", "is_legal"), [([4, 3], True), ([3, 4], True), ([5, 2], False)]
)
def test_the_checker_tells_chunks_apart(layers: list[int], is_legal: bool) -> None:
    found = deeper(spec("megatron", 6.0, **CHUNKS, recompute="none"), 7)
    stages = tuple(Stage(layers=count, recompute_layers=0) for count in layers)
    plan = best(solve(found)).model_copy(update={"stages": stages})
    names = [rule.rule for rule in broken_rules(make_job(found), plan)]
    assert names == ([] if is_legal else ["chunks_even"])


PINNED = [(2, [5, 2]), (2, [1, 6]), (4, [4, 3]), (4, [3, 4])]
"""Chunks of a stage, and pinned layers of which every chunk holds something."""


@pytest.mark.parametrize(("vpp", "layers"), PINNED)
@pytest.mark.parametrize("framework", ["ideal", "megatron", "torchtitan"])
@pytest.mark.parametrize("memory_gib", gate([3.0], everything=[3.0, 6.0]))
def test_pinned_stages_take_any_chunks(
    framework: str, memory_gib: float, vpp: int, layers: list[int]
) -> None:
    pins = {"vpp": vpp, "micro_batch": 1, "layers": layers}
    found = pinned(spec(framework, memory_gib), 7, **pins)
    compare(found)
    outcome = solve(found)
    if outcome.best is not None:
        assert [count for count, _ in counts(outcome.best.plan)] == layers
        assert broken_rules(make_job(found), outcome.best.plan) == []


def test_pinned_stages_of_even_layers_are_no_even_split() -> None:
    found = pinned(spec("megatron", 6.0), 8, vpp=2, micro_batch=1, layers=[5, 3])
    compare(found)
    assert best(solve(found)).chunk_layers() == (2, 1, 3, 2)


def test_only_the_ends_of_the_model_have_chunks_without_layers() -> None:
    """The first one holds the embedding, the last one the loss."""
    pins = {"vpp": 4, "micro_batch": 1}
    plans = [
        best(solve(pinned(spec("megatron", 6.0), 7, **pins, layers=layers)))
        for layers in ([3, 4], [4, 3])
    ]
    assert [plan.chunk_layers() for plan in plans] == [
        (0, 1, 1, 1, 1, 1, 1, 1),
        (1, 1, 1, 1, 1, 1, 1, 0),
    ]
    for framework, layers in (("megatron", [5, 2]), ("nanotron", [3, 4])):
        refused = solve(pinned(spec(framework, 6.0), 7, **pins, layers=layers))
        assert refused.best is None
        assert refused.near_miss is not None
        names = {rule.rule for rule in refused.near_miss.broken_rules}
        assert names & {"chunks_even", "interleaving_divisible"}


def pinned(given: Spec, n_layers: int, **pins: Any) -> Spec:
    """Return a spec with another number of layers, and pins."""
    data = deeper(given, n_layers).model_dump(exclude_unset=True)
    data["pins"] = {"pp": 2, **pins}
    return Spec.model_validate(data)


def test_one_number_counts_in_every_chunk() -> None:
    """One layer of each chunk of 2, 2, 1 and 2: two of 4 and two of 3 layers."""
    more = {"recompute": "full", "recompute_layers": [2, 2], "layers": [4, 3]}
    for framework in ("megatron", "generic"):
        found = deeper(spec(framework, 6.0, **CHUNKS), 7).model_dump(exclude_unset=True)
        found["pins"] |= more
        assert counts(best(solve(Spec.model_validate(found)))) == [(4, 2), (3, 2)]


@pytest.mark.parametrize("layers", [[6, 2], [2, 6], [12, 4], [30, 2]])
def test_bounds_on_bubbles_hold_for_pinned_chunks(layers: list[int]) -> None:
    """The slowest of uneven stages may leave less to the other than an even split."""
    pins: dict[str, Any] = {"tp": 1, "pp": 2, "vpp": 2, "micro_batch": 1}
    model = {"n_layers": sum(layers)}
    result = tiny_spec("torchtitan", 400.0, 2, model, layers=layers, **pins)
    job = make_job(result)
    lattice = build_lattice(job)
    first = lattice.unplaced.take(find_families(job, lattice).start)
    found = solve(result, Options(is_brief=True)).best
    assert found is not None
    least_s = least_bubbles(job, first) * TICK_S
    assert least_s.max() <= found.time_parts["bubble"]
    assert least_s.max() > 0


def test_only_equal_chunks_and_single_stages_leave_one_split() -> None:
    free = deeper(spec("megatron", 6.0, **CHUNKS), 12)
    pinned = free.model_copy(update={"pins": Pins(layers=(5, 7))})
    rows = Skeletons.joined([row(pp=p, vpp=v) for p, v in PLACES])
    assert has_even_split(free, rows).tolist() == [True, False, True, False]
    assert has_even_split(pinned, rows).tolist() == [True, False, False, False]
