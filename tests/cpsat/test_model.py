"""CP-SAT on small problems of whole numbers against every split of every skeleton."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from ortools.sat.python.cp_model import CpModel, CpSolver

from meshwright.cpsat.model import build
from meshwright.cpsat.problem import (
    Pairs,
    Problem,
    SkeletonChoice,
    StageAmount,
    StageChoice,
)
from meshwright.cpsat.prove import _confirm_infeasible, prove, with_unique_split
from meshwright.deadline import NEVER, Deadline
from meshwright.errors import InternalError

HORIZON = 100_000

MANY = 120
"""Random problems; each takes some hundredths of a second."""


def random_stage(random: Random, layers: int, recomputes: bool) -> StageChoice:
    def some(most: int) -> int:
        return random.randint(0, most)

    freed = random.randint(1, 4) if recomputes else 0
    per_layer = freed + random.randint(1, 4)
    links = [
        StageAmount(some(6), some(4), some(4)) for _ in range(random.choice([0, 1, 2]))
    ]
    return StageChoice(
        fill=StageAmount(some(9), some(9), some(5)),
        pace=StageAmount(some(9), some(9), some(5)),
        sync=StageAmount(some(9), some(4)),
        memory=StageAmount(0, per_layer, -freed),
        capacity=random.randint(2, 6) * layers,
        fewest_layers=random.choice([1, 1, 2]),
        most_layers=random.choice([layers, layers, 3]),
        links=tuple(links),
    )


def random_problem(seed: int) -> Problem:
    """Return a problem of up to three skeletons with up to three stages each."""
    random = Random(seed)
    layers, skeletons = random.randint(2, 6), []
    count = random.randint(1, 3)
    for _ in range(random.randint(1, 3)):
        recomputes = random.random() < 0.5
        stages = [random_stage(random, layers, recomputes) for _ in range(count)]
        skeletons.append(SkeletonChoice(tuple(stages), recomputes))
    pinned = [random.randint(1, 3) for _ in range(count)]
    again = [random.randint(0, 1) for _ in range(count)]
    is_pinned = random.random() < 0.2
    return Problem(
        tuple(skeletons),
        layers=sum(pinned) if is_pinned else layers,
        horizon=HORIZON,
        pinned_layers=tuple(pinned) if is_pinned else None,
        pinned_recompute=tuple(again) if random.random() < 0.15 else None,
        link_share=random.choice([None, 0.25, 0.4, 0.5]),
    )


def amount(own: StageAmount, n: int, r: int) -> int:
    return own.fixed + n * own.per_layer + r * own.per_recomputed


def ticks(choice: SkeletonChoice, split: Pairs) -> int:
    """Return the step of a split: all stages, and the slowest and longest again."""
    filled, paces, ends = 0, [], []
    for stage, (n, r) in zip(choice.stages, split, strict=True):
        filled += amount(stage.fill, n, r)
        paces.append(amount(stage.pace, n, r))
        ends.append(amount(stage.sync, n, r))
    return filled + max(paces) + max(ends)


def is_allowed(problem: Problem, choice: SkeletonChoice, split: Pairs) -> bool:
    if sum(n for n, _ in split) != problem.layers:
        return False
    if choice.is_recomputing and not any(r for _, r in split):
        return False
    if problem.pinned_layers not in (None, tuple(n for n, _ in split)):
        return False
    if problem.pinned_recompute not in (None, tuple(r for _, r in split)):
        return False
    step = ticks(choice, split)
    for stage, (n, r) in zip(choice.stages, split, strict=True):
        if amount(stage.memory, n, r) > stage.capacity:
            return False
        for use in stage.links if problem.link_share is not None else ():
            busy = amount(use, n, r)
            # Shares count in hundredths of a percent.
            if 10_000 * busy > int((problem.link_share or 0) * 10_000) * step:
                return False
    return True


def splits(problem: Problem, choice: SkeletonChoice) -> Iterator[Pairs]:
    """Yield every split that a problem allows."""
    each = [
        [
            (n, r)
            for n in range(stage.fewest_layers, stage.most_layers + 1)
            for r in range((n if stage.memory.per_recomputed else 0) + 1)
        ]
        for stage in choice.stages
    ]
    yield from (own for own in product(*each) if is_allowed(problem, choice, own))


def evenness(split: Pairs) -> tuple[int, ...]:
    """Return what settles ties: even ones first, then fewer layers at the front."""
    layers = [n for n, _ in split]
    return (max(layers), -min(layers), *layers, *(r for _, r in split))


@pytest.mark.parametrize("seed", range(MANY))
def test_the_proof_is_the_least_of_all_splits(seed: int) -> None:
    problem = random_problem(seed)
    every = [list(splits(problem, choice)) for choice in problem.skeletons]
    least = [
        min((ticks(choice, own) for own in all_own), default=math.inf)
        for choice, all_own in zip(problem.skeletons, every, strict=True)
    ]
    proof = prove(problem, NEVER, seed, 1)
    if min(least) == math.inf:
        assert (proof.status, proof.skeleton, proof.split) == ("infeasible", -1, ())
        return
    # Of equals the first skeleton wins.
    assert proof.status == "optimal"
    assert (proof.ticks, proof.bound) == (min(least), min(least))
    assert proof.skeleton == least.index(min(least))
    choice, own = problem.skeletons[proof.skeleton], every[proof.skeleton]
    assert proof.split in own
    assert ticks(choice, proof.split) == proof.ticks
    equals = [split for split in own if ticks(choice, split) == proof.ticks]
    final = with_unique_split(problem, proof, NEVER, seed, 1)
    assert final == replace(proof, split=min(equals, key=evenness))


def test_problems_have_everything() -> None:
    found = [random_problem(seed) for seed in range(MANY)]
    possible = [any(any(splits(p, c)) for c in p.skeletons) for p in found]
    assert MANY / 3 < sum(possible) < MANY - 10
    solved = [
        own for own, is_possible in zip(found, possible, strict=True) if is_possible
    ]
    limited = [own for own in solved if own.link_share is not None]
    changed = [
        prove(own, NEVER, 0, 1).ticks
        != prove(replace(own, link_share=None), NEVER, 0, 1).ticks
        for own in limited
    ]
    assert sum(changed) > 3
    assert any(own.pinned_layers for own in solved)
    assert any(own.pinned_recompute for own in solved)


@pytest.mark.parametrize("seed", range(20))
def test_hints_are_whole_and_true(seed: int) -> None:
    """With all variables fixed to their hints there is one solution: the hinted one."""
    problem = random_problem(seed)
    for index, choice in enumerate(problem.skeletons):
        split = next(splits(problem, choice), None)
        if split is None:
            continue
        model, every = build(replace(problem, hint=(index, split)))
        solver = CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        solver.parameters.num_workers = 1
        assert solver.status_name(solver.solve(model)) == "OPTIMAL"
        assert [solver.boolean_value(own.chosen) for own in every] == [
            number == index for number in range(len(every))
        ]
        own = every[index]
        assert solver.value(own.step_ticks()) == ticks(choice, split)


def test_a_wrong_verdict_is_found_out() -> None:
    model = CpModel()
    model.new_bool_var("")
    with pytest.raises(InternalError, match="has a solution"):
        _confirm_infeasible(model, NEVER, 0)
    model.add_bool_or([])
    _confirm_infeasible(model, NEVER, 0)


def test_without_time_or_effort_nothing_is_claimed() -> None:
    """A bound is none, or true; what is not proven is not settled."""
    problem = random_problem(2)
    proven = prove(problem, NEVER, 0, 1)
    assert proven.status == "optimal"
    for proof in (
        prove(problem, Deadline(0.0), 0, 1),
        prove(problem, NEVER, 0, 1, most_effort=0.0),
    ):
        assert proof.bound <= proven.ticks
        if proof.status != "optimal":
            assert with_unique_split(problem, proof, NEVER, 0, 1) == proof
