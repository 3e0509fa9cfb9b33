"""Conflicts and correction sets against all sets of decisions there are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations, pairwise
from random import Random
from typing import Any

import pytest

import meshwright as mw
from meshwright.errors import InternalError
from meshwright.explanations.conflict import (
    NamedBits,
    analyse_infeasibility,
    any_skeleton_fits,
    correction_sets,
    minimal_sets,
    smallest_conflict,
    smallest_hitting_set,
    solve_only_decisions,
)
from meshwright.explanations.decisions import (
    LINK_SHARE,
    TP_LINK,
    decisions_in,
    with_topology,
    without_decisions,
)
from meshwright.explanations.framework_rules import rules_behind
from meshwright.planner import memory_fit
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from tests.helpers.extent import gate
from tests.helpers.tiny import tiny_spec

TWO = "gpt-1.3b-2xa100-pcie"

PINS: dict[str, list[Any]] = {
    "tp": [1, 2],
    "pp": [1, 2],
    "zero": [0, 3],
    "recompute": ["none", "full"],
    "micro_batch": [1, 8],
    "offload": ["none"],
    "dp": [1, 2],
}


def subsets(members: Iterable[int]) -> Iterable[tuple[int, ...]]:
    known = [*members]
    sizes = (combinations(known, size) for size in range(len(known) + 1))
    return chain.from_iterable(sizes)


def drawn_spec(seed: int) -> mw.Spec:
    """Return a spec of few pins, on GPUs of which little may be used."""
    draw = Random(seed)
    names = draw.sample([*PINS], draw.randint(0, 3))
    spec = mw.load(TWO, mw.Spec, pins={name: draw.choice(PINS[name]) for name in names})
    limits: dict[str, float] = {"memory_gib": draw.choice([3.0, 9.0, 14.0, 40.0])}
    if draw.random() < 0.4:
        limits["tp_min_link_gb_s"] = 1e4
    return spec.having("limits", **limits)


@pytest.mark.parametrize("seed", range(8))
def test_correction_sets_are_the_least_sets_that_leave_a_skeleton(seed: int) -> None:
    spec = drawn_spec(seed)
    names = tuple(decision.rule for decision in decisions_in(spec))
    bits = NamedBits(names)
    enough = [
        bits.bits(names[at] for at in given_up)
        for given_up in subsets(range(len(names)))
        if any_skeleton_fits(without_decisions(spec, (names[at] for at in given_up)))
    ]
    least = minimal_sets(enough)
    assert correction_sets(spec, bits) == least
    if 0 in least:
        return
    # A test of memory tells it all: no solve is asked.
    found = analyse_infeasibility(spec, lambda _: pytest.fail("a solve"))
    assert found.is_complete
    assert found.correction_sets == least
    assert found.conflict == smallest_hitting_set(least, len(names))
    kept = bits.names_of(bits.every & ~found.conflict)
    assert not any_skeleton_fits(without_decisions(spec, kept))


LEVELS = [
    {"name": "node", "size": 2, "gb_s": 50.0, "latency_us": 2.0},
    {"name": "net", "size": 2, "gb_s": 5.0, "latency_us": 5.0},
]

SMALL: dict[str, Any] = {
    "model": {
        "n_layers": 4, "d_model": 2048, "n_heads": 16, "d_ff": 8192, "vocab": 32_000
    },
    "training": {"seq_len": 2048, "global_batch": 8},
}  # fmt: skip

RARE: dict[str, list[Any]] = {
    "recompute_modules": ["mlp", ["mlp", "core_attn"], ""],
    "recompute_segment": [2, 3],
    "recompute": ["selective", "full", "full-cpu", ["none", "full-cpu"]],
    "offload": ["optimizer", "none", "parameters"],
    "mesh": [{"tp": [2, 1]}, {"pp": [2, 1]}, {"dp_shard": [1, 2]}],
    "tp": [2, 4],
    "zero": [0, 3],
    "dp": [1, 4],
    "pp": [1, 2],
}
"""Pins of which a search tries some only where they are asked for."""

RULES = ["tp == 3", "pp >= 2", "cp == 1 and tp >= 2", "micro_batch > 4"]


def small(host: dict[str, Any] | None, **fields: Any) -> mw.Spec:
    gpu = {"memory_gib": 24, "memory_gb_s": 900.0, "peak_tflops": {"bf16": 100.0}}
    topology = {"gpu": gpu, "levels": LEVELS, "host": host}
    return mw.load({**SMALL, "cluster": {"topology": topology}, **fields}, mw.Spec)


def rare_spec(seed: int) -> mw.Spec:
    """Return a spec of three pins and rules on two hosts of two GPUs."""
    draw = Random(seed)
    gib = draw.choice([None, 0.5, 4.0, 50.0])
    host = {"memory_gib": gib, "pcie_gb_s": 16, "memory_gb_s": 100}
    names = draw.sample([*RARE], draw.randint(1, 3))
    return small(
        None if gib is None else host,
        framework=draw.choice(["fsdp", "deepspeed", "megatron"]),
        pins={name: draw.choice(RARE[name]) for name in names},
        rules=draw.sample(RULES, 3 - len(names)),
        limits={"memory_gib": draw.choice([1.5, 3.0, 6.0])},
    )


@pytest.mark.parametrize("seed", gate(range(6), everything=range(80)))
def test_rare_pins_rules_and_hosts_are_given_up_where_they_stand_in_the_way(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many skeletons are looked at together."""
    spec = rare_spec(seed)
    names = tuple(decision.rule for decision in decisions_in(spec))
    bits = NamedBits(names)
    least = minimal_sets(
        bits.bits(names[at] for at in given_up)
        for given_up in subsets(range(len(names)))
        if any_skeleton_fits(without_decisions(spec, (names[at] for at in given_up)))
    )
    monkeypatch.setattr(memory_fit, "FOUND_AT_ONCE", 7 + 100 * seed)
    assert correction_sets(spec, bits) == least


def test_what_no_framework_has_whatever_is_given_up_has_no_way_out() -> None:
    """Three GPUs for eight heads, two layers and one sequence."""
    spec = tiny_spec("megatron", 80, 3, {"n_layers": 2}, batch=1, zero=0)
    bits = NamedBits(tuple(decision.rule for decision in decisions_in(spec)))
    assert correction_sets(spec, bits) == []
    found = analyse_infeasibility(spec, any_skeleton_fits)
    assert (found.conflict, found.correction_sets) == (0, [])
    assert {rule.rule for rule in rules_behind(spec, [])} >= {"heads_divisible"}


@pytest.mark.parametrize(
    ("pins", "more"),
    [
        ({"tp": 4, "layers": [1, 3]}, {"limits": {"memory_gib": 4.5}}),
        ({"tp": 1, "layers": [1, 3]}, {"limits": {"memory_gib": 1.2}}),
        (
            {"recompute": "full", "recompute_layers": [1, 0, 1, 1]},
            {"rules": ["tp > 1"]},
        ),
        ({"tp": 2, "layers": [1, 3]}, {"limits": {"max_link_utilisation": 0.001}}),
        ({"tp": 2}, {"rules": ["step_s < 0.01"]}),
    ],
)
def test_a_conflict_of_decisions_that_only_solves_check_is_smallest_too(
    pins: dict[str, Any], more: dict[str, Any]
) -> None:
    """No plan keeps it, and what else may be given up meets every way to a plan."""
    spec = small(None, framework="megatron", pins=pins, **more)
    names = tuple(decision.rule for decision in decisions_in(spec))
    asked = dict[str, bool]()

    def has_plan(changed: mw.Spec) -> bool:
        key = changed.model_dump_json()
        if key not in asked:
            best = solve(changed, Options(is_brief=True, has_near_miss=False)).best
            asked[key] = best is not None
        return asked[key]

    def is_possible(given_up: Iterable[str]) -> bool:
        return has_plan(without_decisions(spec, given_up))

    found = analyse_infeasibility(spec, has_plan)
    assert asked
    assert not found.is_complete
    bits = found.decisions
    assert bits.names == names
    kept = bits.names_of(found.conflict)
    assert not is_possible({*names} - {*kept})
    for fewer in combinations(names, len(kept) - 1):
        assert is_possible({*names} - {*fewer})
    for given_up in found.correction_sets:
        assert is_possible(bits.names_of(given_up))


def test_memory_alone_may_be_the_conflict_and_all_that_is_decided() -> None:
    spec = mw.load(TWO, mw.Spec).having("limits", memory_gib=1.0)
    bare = spec.cluster.topology.model_copy(update={"host": None})
    for one in (spec, with_topology(spec, bare)):
        found = analyse_infeasibility(one, any_skeleton_fits)
        assert found.decisions.names_of(found.conflict) == ("memory",)
        assert found.correction_sets == [found.decisions.bits(["memory"])]
    assert found.decisions.names == ("memory",)


@pytest.mark.parametrize("seed", range(60))
def test_sets_are_hit_and_sorted_out_as_by_plain_loops(seed: int) -> None:
    draw = Random(seed)
    sets = [draw.randint(1, 31) for _ in range(draw.randint(0, 6))]
    least = minimal_sets(sets)
    assert {*least} == {
        one for one in sets if not any(other & one == other != one for other in sets)
    }
    assert least == sorted(least, key=lambda one: (one.bit_count(), one))
    hit = smallest_hitting_set(sets, 5)
    hitting = [one for one in range(32) if all(one & each for each in sets)]
    fewest = min(one.bit_count() for one in hitting)
    members = {one: [bit for bit in range(5) if one >> bit & 1] for one in hitting}
    smallest = [one for one in hitting if one.bit_count() == fewest]
    assert hit == min(smallest, key=lambda one: members[one])


@pytest.mark.parametrize(("sets", "count"), [([0], 3), ([1, 0, 2], 60), ([0], 0)])
def test_what_takes_nothing_to_have_a_plan_is_no_conflict(
    sets: list[int], count: int
) -> None:
    assert smallest_hitting_set([], count) == 0
    with pytest.raises(InternalError, match="have room where no plan was found"):
        smallest_hitting_set(sets, count)


@pytest.mark.parametrize("seed", range(60))
def test_a_conflict_is_smallest_whatever_is_known_before(seed: int) -> None:
    """A set of decisions has a plan if it leaves out one of the correction sets."""
    draw = Random(seed)
    true = minimal_sets(draw.randint(1, 31) for _ in range(draw.randint(1, 5)))
    known = [one for one in true if draw.random() < 0.5]
    names = NamedBits(tuple("abcde"))
    asked = list[int]()

    def is_possible(kept: int) -> bool:
        asked.append(kept)
        return any(not kept & one for one in true)

    conflict, found = smallest_conflict(names, known, is_possible)
    assert not any(not conflict & each for each in true)
    assert conflict == smallest_hitting_set(true, 5)
    assert {*known} <= {*found} <= {*true}
    # A set found on the way is asked for member by member, beside those that it has.
    assert len(asked) <= 1 + 6 * (len(found) - len(known))
    assert all(a != b for a, b in pairwise(asked))


def test_names_are_bits_in_their_order() -> None:
    names = NamedBits(("a", "b", "c"))
    assert names.bits(["c", "a", "a", "other"]) == 0b101
    assert names.names_of(0b110) == ("b", "c")
    assert names.every == 0b111


@pytest.mark.parametrize(
    ("name", "limits", "told"),
    [
        ("gpt-1.3b-dgx-1v", {}, []),
        ("gpt-1.3b-dgx-1v", {"tp_min_link_gb_s": 10.0}, [TP_LINK]),
        ("gpt-1.3b-dgx-1v", {"max_link_utilisation": 0.5}, [LINK_SHARE]),
        (TWO, {"tp_min_link_gb_s": 10.0}, []),
        (TWO, {"max_link_utilisation": 0.5}, [LINK_SHARE]),
    ],
)
def test_limits_that_only_a_solve_can_check(
    name: str, limits: dict[str, float], told: list[str]
) -> None:
    """A limit on the links of tensors is one where the order of GPUs is a choice."""
    spec = mw.load(name, mw.Spec).having("limits", **limits)
    assert solve_only_decisions(spec) == told


@pytest.mark.parametrize(
    ("pins", "rules", "told"),
    [
        ({"recompute": "full"}, [], []),
        ({"recompute": "full", "recompute_layers": "any"}, [], []),
        (
            {"recompute": "full", "recompute_layers": [3, 4], "layers": [10, 14]},
            ["tp == 1"],
            ["pins.layers", "pins.recompute_layers"],
        ),
        ({"pp": 2}, ["tp == 1", "step_s < 9", "max(memory_gib) < 9"], [2, 3]),
    ],
)
def test_stages_and_rules_on_steps_are_checked_by_solves_alone(
    pins: dict[str, Any], rules: list[str], told: list[Any]
) -> None:
    spec = mw.load(TWO, mw.Spec, pins=pins, rules=rules)
    named = [f"rules.rule_{one}" if isinstance(one, int) else one for one in told]
    assert solve_only_decisions(spec) == named


@pytest.mark.parametrize(
    ("pins", "conflict"),
    [
        ({"recompute": "full", "recompute_segment": 5}, {"memory"}),
        ({"recompute": "none", "recompute_segment": 4}, None),
        ({"recompute": "full"}, {"memory"}),
    ],
)
def test_segments_that_a_search_leaves_out_are_tried_where_they_are_pinned(
    pins: dict[str, Any], conflict: set[str] | None
) -> None:
    """What recomputes nothing has no segments to choose."""
    both = {"pins.recompute", "pins.recompute_segment"}
    spec = mw.load(TWO, mw.Spec, pins=pins).having("limits", memory_gib=1.0)
    found = analyse_infeasibility(spec, any_skeleton_fits)
    assert {*found.decisions.names_of(found.conflict)} <= (
        conflict or both | {"memory"}
    )
    ample = spec.having("limits", memory_gib=75.0)
    fits = any_skeleton_fits(ample)
    sets = correction_sets(ample, NamedBits(found.decisions.names))
    assert fits == (conflict is not None) == (sets == [0])
