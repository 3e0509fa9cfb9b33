"""Splits of small pipelines of whole numbers against every split there is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from ortools.sat.python.cp_model import CpSolver

from meshwright.cpsat.ortools import CpModel
from meshwright.deadline import NEVER, Deadline
from meshwright.errors import InternalError
from meshwright.planner.best_split import best_split, least_ticks
from meshwright.planner.pipeline import (
    AnyOf,
    LinearRule,
    Pairs,
    Pipeline,
    PipelineStage,
    Proof,
    StageAmount,
)
from meshwright.planner.split_model import (
    Effort,
    _confirm_infeasible,
    prove,
    split_model,
    with_unique_split,
)
from tests.helpers.extent import gate
from tests.helpers.pipelines import evenness, random_pipeline, splits, ticks

MANY = 200
"""Random pipelines; each takes some hundredths of a second."""

WHOLE = Effort(NEVER)


@pytest.mark.parametrize("seed", range(MANY))
def test_the_proof_is_the_least_of_all_splits(seed: int) -> None:
    pipeline = random_pipeline(seed)
    every = list(splits(pipeline))
    proof = prove(pipeline, Effort(NEVER, seed))
    if not every:
        assert (proof.status, proof.split) == ("infeasible", ())
        return
    least = min(ticks(pipeline, one) for one in every)
    assert (proof.status, proof.ticks, proof.bound) == ("optimal", least, least)
    assert proof.split in every
    assert ticks(pipeline, proof.split) == least
    equals = [one for one in every if ticks(pipeline, one) == least]
    final = with_unique_split(pipeline, proof, WHOLE)
    assert final == replace(proof, split=min(equals, key=evenness))
    assert prove(pipeline, WHOLE, below=least).status == "infeasible"
    assert prove(pipeline, WHOLE, below=least + 1).ticks == least


@pytest.mark.parametrize("seed", range(0, gate(3, everything=10) * MANY, 10))
def test_without_side_constraints_no_solver_is_needed(seed: int) -> None:
    """The exact search returns the least ticks, and the split that ties leave."""
    for one in range(seed, seed + 10):
        pipeline = random_pipeline(one, is_limited=False)
        every = list(splits(pipeline))
        if not every:
            assert best_split(pipeline) is None
            continue
        least = min(ticks(pipeline, split) for split in every)
        equals = [split for split in every if ticks(pipeline, split) == least]
        found = least, min(equals, key=evenness)
        assert best_split(pipeline) == found
        assert best_split(pipeline, below=least) is None
        assert best_split(pipeline, below=least + 1) == found
        assert least_ticks(pipeline, below=least) == least
        assert least_ticks(pipeline, below=least + 5) == least


def test_pipelines_have_everything() -> None:
    found = [random_pipeline(seed) for seed in range(MANY)]
    solved = [one for one in found if any(splits(one))]
    assert MANY / 3 < len(solved) < MANY - 10
    limited = [one for one in solved if one.link_share is not None]
    changed = [
        prove(one, WHOLE).ticks != prove(replace(one, link_share=None), WHOLE).ticks
        for one in limited
    ]
    assert sum(changed) > 3
    for name in ("pinned_layers", "pinned_recompute", "same_in_chunks"):
        assert any(getattr(one, name) for one in solved)
    assert any(one.recomputes_every_layer and one.is_recomputing for one in solved)


@pytest.mark.parametrize("seed", range(20))
def test_hints_are_whole_and_true(seed: int) -> None:
    """With all variables fixed to their hints there is one solution: the hinted one."""
    pipeline = random_pipeline(seed)
    split = next(splits(pipeline), None)
    if split is None:
        return
    model = split_model(replace(pipeline, hint=split))
    solver = CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    solver.parameters.num_workers = 1
    assert solver.status_name(solver.solve(model.cp)) == "OPTIMAL"
    assert solver.value(model.step_ticks()) == ticks(pipeline, split)


def test_a_wrong_verdict_is_found_out() -> None:
    model = CpModel()
    model.new_bool_var("")
    with pytest.raises(InternalError, match="has a solution"):
        _confirm_infeasible(model, WHOLE)
    model.add_bool_or([])
    _confirm_infeasible(model, WHOLE)


def test_without_time_or_effort_nothing_is_claimed() -> None:
    """A bound is none, or true; what is not proven is not settled."""
    pipeline = next(
        one
        for one in map(random_pipeline, range(MANY))
        if len(one.stages) == 3 and prove(one, WHOLE).status == "optimal"
    )
    proven: Proof = prove(pipeline, WHOLE)
    for effort in (Effort(Deadline(0.0)), Effort(NEVER, most=0.0)):
        proof = prove(pipeline, effort)
        assert proof.bound <= proven.ticks
        assert math.isfinite(proof.bound) or proof.bound == -math.inf
        if proof.status != "optimal":
            assert with_unique_split(pipeline, proof, effort) == proof


NOTHING = StageAmount(0, 0)


def free_stage(most_layers: int) -> PipelineStage:
    """Return a stage whose layers take no time, so that all splits take the same."""
    return PipelineStage(
        fill=NOTHING,
        pace=NOTHING,
        sync=NOTHING,
        memory=StageAmount(0, 2, -1),
        capacity=100,
        fewest_layers=1,
        most_layers=most_layers,
        links=(),
    )


def test_of_equals_the_largest_stage_is_as_small_as_it_can_be() -> None:
    """One stage has room for a layer, so that the least is 1 in any split."""
    stages = tuple(map(free_stage, (1, 6, 6)))
    pipeline = Pipeline(stages, layers=6, horizon=100, is_recomputing=False)
    proof = prove(pipeline, WHOLE)
    split = with_unique_split(pipeline, proof, WHOLE).split
    assert split == ((1, 0), (2, 0), (3, 0))
    assert best_split(pipeline) == (0, split)


@pytest.mark.parametrize(("most", "is_kept"), [(10, True), (9, False)])
def test_rules_on_recomputed_layers_reach_as_far_as_these(
    most: int, is_kept: bool
) -> None:
    """The slowest stage recomputes both of its layers, at 5 each."""
    again = (StageAmount(0, 0, 5), StageAmount(0, 0, 5))
    rule = LinearRule((0, 0), (0, 0), most=most, of_slowest=again)
    pipeline = Pipeline(
        tuple(map(free_stage, (2, 2))),
        layers=4,
        horizon=100,
        is_recomputing=True,
        pinned_recompute=(2, 0),
        seconds=again,
        clauses=(AnyOf((rule,)),),
    )
    assert prove(pipeline, WHOLE).status == ("optimal" if is_kept else "infeasible")


def random_clauses(pipeline: Pipeline, random: Random) -> Pipeline:
    """Return a pipeline with rules on the splits of its stages, of every kind."""
    count = len(pipeline.stages)

    def numbers(least: int, most: int) -> tuple[int, ...]:
        return tuple(random.randint(least, most) for _ in range(count))

    def amounts() -> tuple[StageAmount, ...]:
        if random.random() < 0.5:
            return ()
        return tuple(map(StageAmount, numbers(-3, 3), numbers(-2, 3), numbers(-2, 3)))

    def rule() -> LinearRule:
        return LinearRule(
            numbers(-2, 2), numbers(-2, 2), random.randint(-2, 6), amounts(), amounts()
        )

    clauses = [
        AnyOf(tuple(rule() for _ in range(random.randint(1, 3))))
        for _ in range(random.randint(1, 2))
    ]
    seconds = tuple(map(StageAmount, numbers(0, 5), numbers(1, 4), numbers(0, 2)))
    return replace(
        pipeline, clauses=tuple(clauses), seconds=seconds, rounding=random.randint(0, 1)
    )


def keeps_clauses(pipeline: Pipeline, split: Pairs) -> bool:
    """Return whether a split keeps all clauses, by some stages that take longest."""
    syncs = tuple(stage.sync for stage in pipeline.stages)
    return any(
        all(
            any(_keeps(rule, split, e, f) for rule in c.rules) for c in pipeline.clauses
        )
        for e in _longest(pipeline.seconds, split, pipeline.rounding)
        for f in _longest(syncs, split, pipeline.rounding)
    )


def _longest(times: Sequence[StageAmount], split: Pairs, rounding: int) -> list[int]:
    taken = [time.of(*pair) for time, pair in zip(times, split, strict=True)]
    return [e for e, one in enumerate(taken) if one >= max(taken) - rounding]


def _keeps(rule: LinearRule, split: Pairs, slowest: int, last: int) -> bool:
    parts = zip(rule.per_layer, rule.per_recomputed, split, strict=True)
    needed = sum(a * n + b * r for a, b, (n, r) in parts)
    if rule.of_slowest:
        needed += rule.of_slowest[slowest].of(*split[slowest])
    if rule.of_last:
        needed += rule.of_last[last].of(*split[last])
    return needed <= rule.most


def test_the_best_split_that_keeps_rules_is_that_of_all_splits() -> None:
    told = Counter[str]()
    for seed in range(2 * MANY):
        free = random_pipeline(seed, is_limited=False)
        every = list(splits(free))
        if not every:
            continue
        ruled = random_clauses(free, Random(seed))
        kept = [ticks(free, one) for one in every if keeps_clauses(ruled, one)]
        proof = prove(ruled, WHOLE)
        told[proof.status] += 1
        if not kept:
            assert proof.status == "infeasible"
            continue
        assert (proof.status, proof.ticks) == ("optimal", min(kept))
        assert keeps_clauses(ruled, proof.split)
        told["slower"] += min(kept) > min(ticks(free, one) for one in every)
    assert min(told.values()) > 10
