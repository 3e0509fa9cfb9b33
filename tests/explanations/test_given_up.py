"""What is given up for a plan, by plain loops over all sets of decisions.

Whether a plan exists is drawn, not solved for.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from random import Random
from typing import Any

import pytest

import meshwright as mw
from meshwright.explanations.conflict import (
    Infeasibility,
    NamedBits,
    minimal_sets,
    smallest_hitting_set,
)
from meshwright.explanations.decisions import LINK_SHARE, MEMORY, decisions_in
from meshwright.explanations.judged_plan import nearest_plan
from meshwright.explanations.repairs import plan_repairs, unpriced_repair
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import Repair
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec

PINS = {"tp": 2, "pp": 1, "zero": 0, "micro_batch": 1}


@cache
def asked() -> Spec:
    spec = mw.load("gpt-1.3b-2xa100-pcie", Spec, pins=PINS)
    return spec.having("limits", max_link_utilisation=0.9)


@cache
def solved() -> Outcome:
    return solve(asked(), Options(is_brief=True))


def best() -> PricedPlan:
    plan = solved().best
    assert plan is not None
    return plan


def given_up(spec: Spec) -> frozenset[str]:
    """Return the decisions that a spec has left open."""
    names = {f"pins.{name}" for name in PINS if getattr(spec.pins, name) is None}
    is_limited = spec.limits.max_link_utilisation is not None
    return frozenset(names if is_limited else names | {LINK_SHARE})


class Drawn:
    """A random spec without a plan, by the sets of decisions that leave it one."""

    def __init__(self, seed: int) -> None:
        draw = Random(seed)
        self.bits = NamedBits(tuple(one.rule for one in decisions_in(asked())))
        each = [1 << at for at in range(len(self.bits.names))]
        sizes = [draw.choice([1, 2, 2, 3, 3]) for _ in range(draw.randint(2, 6))]
        self.true = minimal_sets(sum(draw.sample(each, size)) for size in sizes)
        self.is_complete = draw.random() < 0.5
        known = [one for one in self.true if self.is_complete or draw.random() < 0.6]
        # Memory tests skeletons alone: now and then a solve finds no plan.
        self.unlucky = {one for one in self.true if draw.random() < 0.2}
        count = len(self.bits.names)
        conflict = smallest_hitting_set(self.true, count)
        self.found = Infeasibility(self.bits, conflict, known, self.is_complete)
        self.keep = draw.choice([(), (LINK_SHARE,)])
        self.asked = list[frozenset[str]]()

    def has_plan(self, bits: int) -> bool:
        enough = [one for one in self.true if one & bits == one]
        return any(one not in self.unlucky for one in enough)

    def step_s(self, bits: int) -> float:
        """Return a step time that no other set of decisions has."""
        return 1 + (bits * 37 % 101) / 100

    def answer(self, spec: Spec) -> Outcome:
        names = given_up(spec)
        self.asked.append(names)
        bits = self.bits.bits(names)
        if not self.has_plan(bits):
            return solved().model_copy(update={"best": None})
        changed = best().model_copy(update={"step_s": self.step_s(bits)})
        return solved().model_copy(update={"best": changed})

    def sets_by_size(self) -> list[list[int]]:
        """Return the sets that are tried, those of one size together."""
        kept = self.bits.bits([MEMORY, "host_memory", *self.keep])
        known = [one for one in self.found.correction_sets if not one & kept]
        if self.is_complete:
            by_size = range(1, 8)
            return [[one for one in known if one.bit_count() == n] for n in by_size]
        free = [1 << at for at in range(len(self.bits.names)) if not kept >> at & 1]
        pairs = [sum(chosen) for chosen in combinations(free, 2)]
        conflict = self.found.conflict
        tried = [[one for one in sets if one & conflict] for sets in (free, pairs)]
        more = [[one for one in known if one.bit_count() == n] for n in range(3, 8)]
        return [*tried, *more]


@pytest.mark.parametrize("seed", range(60))
def test_the_fewest_decisions_are_given_up_of_those_that_may_be(seed: int) -> None:
    """All sets of that many are told, the fastest plan first, and asked about once."""
    drawn, tried, expected = Drawn(seed), list[int](), list[int]()
    found = plan_repairs(asked(), drawn.found, drawn.answer, drawn.keep)
    for sets in drawn.sets_by_size():
        tried += sets
        expected = [one for one in sets if drawn.has_plan(one)]
        if expected:
            break
    expected.sort(key=drawn.step_s)
    assert [repair.step_s for repair in found] == [*map(drawn.step_s, expected)]
    for repair, bits in zip(found, expected, strict=True):
        names = [name.removeprefix("pins.") for name in drawn.bits.names_of(bits)]
        assert [edit.partition(":")[0] for edit in repair.edits] == names
        assert (repair.changes, repair.plan) == ("plan", best().plan)
    assert sorted(drawn.bits.bits(names) for names in drawn.asked) == sorted(tried)


def test_all_sizes_of_sets_are_drawn() -> None:
    """Where all correction sets are known, and where they are not."""
    seen = set[tuple[bool, int]]()
    for seed in range(60):
        drawn = Drawn(seed)
        found = plan_repairs(asked(), drawn.found, drawn.answer, drawn.keep)
        seen.add((drawn.is_complete, len(found[0].edits) if found else 0))
    assert seen == {(is_known, size) for is_known in (True, False) for size in range(4)}


def repair(*edits: str, changes: Any = "plan") -> Repair:
    found = unpriced_repair(edits, best(), changes)
    return found.model_copy(update={"price": 0.5, "against": "the fastest repair"})


def test_the_nearest_plan_is_the_first_repair_of_nothing_but_fields() -> None:
    """What is bought, and limits that are dropped, is no plan of what was asked for."""
    fields = repair("tp: 2 -> 1", "zero: 0 -> 1")
    repairs = [
        repair("training.loss_chunks: 1 -> 8", changes="flag"),
        repair("tp: 2 -> 1", f"{LINK_SHARE}: 0.9 -> null"),
        fields,
        repair("pp: 1 -> 2"),
    ]
    told = nearest_plan(asked(), repairs)
    assert told is not None
    assert (told.changes, told.kept) == (fields.edits, ("pp", "micro_batch"))
    assert (told.step_s, told.price, told.against, told.plan) == (
        fields.step_s, 0.5, "the fastest repair", fields.plan
    )  # fmt: skip
    assert told.text == str(fields.plan)
    assert nearest_plan(asked(), repairs[:2]) is None
    assert nearest_plan(asked(), [repair("count: 1", changes="machines")]) is None
    assert nearest_plan(asked(), []) is None


@pytest.mark.parametrize(
    ("counted", "told"), [(None, "any"), ("any", "any"), ([7], "[7]")]
)
def test_counts_of_recomputed_layers_are_open_unless_they_are_asked_for(
    counted: object, told: str
) -> None:
    """A mode alone would mean all layers, of which the nearest plan recomputes some."""
    pins = PINS | {"recompute": "full", "recompute_layers": counted}
    spec = mw.load("gpt-1.3b-2xa100-pcie", Spec, pins=pins)
    (stage,) = best().plan.stages
    some = stage.model_copy(update={"recompute_layers": 7})
    plan = best().plan.model_copy(update={"recompute": "full", "stages": (some,)})
    changed = repair("tp: 2 -> 1").model_copy(update={"plan": plan})
    nearest = nearest_plan(spec, [changed])
    assert nearest is not None
    assert nearest.text.count("recompute_layers=") == 1
    assert f",recompute_layers={told}" in nearest.text
