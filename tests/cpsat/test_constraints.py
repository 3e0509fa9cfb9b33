"""Every rule of the model by itself: values that keep it, and values that break it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from ortools.sat.python.cp_model import CpModel, CpSolver

from meshwright.cpsat.constraints import RULES
from meshwright.cpsat.problem import (
    AnyOf,
    LinearRule,
    Problem,
    SkeletonChoice,
    StageAmount,
    StageChoice,
)
from meshwright.cpsat.variables import make_variables

STAGE = StageChoice(
    fill=StageAmount(1, 2, 1),
    pace=StageAmount(3, 4, 1),
    sync=StageAmount(5, 1),
    memory=StageAmount(0, 10, -6),
    capacity=25,
    fewest_layers=1,
    most_layers=4,
    links=(StageAmount(0, 3),),
)
SKELETON = SkeletonChoice((STAGE, STAGE), is_recomputing=True)
PROBLEM = Problem((SKELETON,), layers=4, horizon=1000)
SAME = replace(PROBLEM, skeletons=(replace(SKELETON, same_in_chunks=1),))
LIMITED = replace(PROBLEM, link_share=0.25)

SECONDS = (StageAmount(0, 2, 1), StageAmount(0, 2, 1))
FEW_LAYERS = LinearRule((1, -1), (0, 0), most=3)
NEVER = LinearRule((0, 0), (0, 0), most=-1)
SHORT = LinearRule((0, 0), (0, 0), most=8, of_slowest=SECONDS, of_last=SECONDS[:0])
RULED = replace(
    PROBLEM,
    skeletons=(
        replace(
            SKELETON,
            clauses=(
                AnyOf((FEW_LAYERS, LinearRule((0, 0), (0, 0), -1))),
                AnyOf((SHORT,)),
            ),
            seconds=SECONDS,
        ),
    ),
)
"""n_0 - n_1 <= 3, or never; and the slowest stage takes 8 at most."""


@dataclass(frozen=True)
class Values:
    """Values of all variables of one skeleton, by default those of no choice."""

    chosen: int = 0
    layers: tuple[int, int] = (0, 0)
    recomputed: tuple[int, int] = (0, 0)
    pace: int = 0
    sync: int = 0
    in_each_chunk: int = 0


UNCHOSEN = Values()
GOOD = Values(1, (2, 2), (1, 0), pace=12, sync=7)
"""Pace 3 + 2 x 4 + 1 and sync 5 + 2; fill 2 x (1 + 2 x 2) + 1, so the step is 30."""

RULE = {rule.__name__: rule for rule in RULES}

CASES: dict[str, tuple[Problem, Values, Values]] = {
    # rule: (a problem, values that keep it, values that break it)
    "choose_one_skeleton": (PROBLEM, GOOD, UNCHOSEN),
    "place_all_layers": (PROBLEM, GOOD, replace(GOOD, layers=(2, 1))),
    "fill_every_stage": (PROBLEM, GOOD, replace(GOOD, layers=(4, 0))),
    "recompute_some_layer": (PROBLEM, GOOD, replace(GOOD, recomputed=(0, 0))),
    "recompute_held_layers": (PROBLEM, GOOD, replace(GOOD, recomputed=(3, 0))),
    "recompute_same_number": (
        SAME,
        replace(GOOD, layers=(3, 1), recomputed=(2, 1), in_each_chunk=2),
        replace(GOOD, recomputed=(2, 1), in_each_chunk=2),
    ),
    # 3 layers take 30 chunks of 25; one recomputed gives back 6.
    "fit_memory": (
        PROBLEM,
        replace(GOOD, layers=(3, 1)),
        replace(GOOD, layers=(3, 1), recomputed=(0, 0)),
    ),
    "time_slowest_stage": (PROBLEM, GOOD, replace(GOOD, pace=11)),
    "time_longest_sync": (PROBLEM, GOOD, replace(GOOD, sync=6)),
    # A link is busy for 3 x 2 ticks of 30; 3 x 3 ticks are more than a quarter of 30.
    "limit_link_use": (LIMITED, GOOD, replace(GOOD, layers=(3, 1))),
    "keep_pinned_layers": (
        replace(PROBLEM, pinned_layers=(2, 2)),
        GOOD,
        replace(GOOD, layers=(3, 1)),
    ),
    "keep_pinned_recompute": (
        replace(PROBLEM, pinned_recompute=(1, 0)),
        GOOD,
        replace(GOOD, recomputed=(0, 1)),
    ),
    "recompute_every_layer": (
        replace(PROBLEM, recomputes_every_layer=True),
        replace(GOOD, recomputed=GOOD.layers),
        GOOD,
    ),
    "avoid_forbidden_splits": (
        PROBLEM.without(0, ((3, 1), (1, 0))),
        GOOD,
        replace(GOOD, layers=(3, 1)),
    ),
    "keep_user_rules": (RULED, GOOD, replace(GOOD, layers=(4, 0))),
}


def keeps(rule: str, problem: Problem, *values: Values) -> bool:
    """Return whether values of every skeleton's variables keep one rule."""
    model = CpModel()
    skeletons = make_variables(model, problem)
    RULE[rule](model, problem, skeletons)
    for skeleton, own in zip(skeletons, values, strict=True):
        variables = (skeleton.chosen, *skeleton.layers, *skeleton.recomputed)
        for variable, value in zip(
            variables, (own.chosen, *own.layers, *own.recomputed), strict=True
        ):
            model.add(variable == value)
        model.add(skeleton.longest_pace == own.pace)
        model.add(skeleton.longest_sync == own.sync)
        model.add(skeleton.in_each_chunk == own.in_each_chunk)
    solver = CpSolver()
    solver.parameters.num_workers = 1
    return solver.status_name(solver.solve(model)) == "OPTIMAL"


def test_every_rule_has_a_case() -> None:
    assert list(CASES) == [rule.__name__ for rule in RULES]


@pytest.mark.parametrize("rule", CASES)
def test_values_keep_or_break_a_rule(rule: str) -> None:
    problem, good, bad = CASES[rule]
    assert keeps(rule, problem, good)
    assert not keeps(rule, problem, bad)


@pytest.mark.parametrize("rule", CASES)
def test_skeletons_that_are_not_chosen_keep_every_rule(rule: str) -> None:
    """All their variables are 0, beside one that is chosen."""
    problem, good, _ = CASES[rule]
    both = replace(problem, skeletons=2 * problem.skeletons)
    assert keeps(rule, both, good, UNCHOSEN)
    assert keeps(rule, both, UNCHOSEN, good)


@pytest.mark.parametrize("rule", ["time_slowest_stage", "time_longest_sync"])
def test_a_slower_step_is_no_way_to_keep_a_limit_on_links(rule: str) -> None:
    """Without a limit the time may be longer than it must be: minimising mends that."""
    slower = replace(GOOD, pace=GOOD.pace + 1, sync=GOOD.sync + 1)
    assert keeps(rule, PROBLEM, slower)
    assert not keeps(rule, LIMITED, slower)
    assert keeps(rule, LIMITED, GOOD)


def test_pinned_recomputed_layers_are_layers_where_all_are_recomputed() -> None:
    """Recomputation is part of every layer there, and no layer counts beside it."""
    rule, all_layers = "keep_pinned_recompute", replace(SKELETON, recomputes_all=True)
    problem = replace(PROBLEM, skeletons=(all_layers,), pinned_recompute=(3, 1))
    assert keeps(rule, problem, Values(1, (3, 1)))
    assert not keeps(rule, problem, Values(1, (2, 2)))


def test_interleaved_chunks_recompute_the_same_number_each() -> None:
    """Two chunks a stage recompute 1 of 2 layers each, so that the stage redoes 2."""
    own = replace(SKELETON, same_in_chunks=2)
    problem = replace(PROBLEM, skeletons=(own,), layers=8)
    rule, split = "recompute_same_number", Values(1, (4, 4), in_each_chunk=1)
    assert keeps(rule, problem, replace(split, recomputed=(2, 2)))
    assert not keeps(rule, problem, replace(split, recomputed=(1, 1)))


def test_rules_ask_nothing_where_nothing_is_limited_or_pinned() -> None:
    """Values that break all of them: no limit, no pin, nothing to recompute."""
    free = replace(PROBLEM, skeletons=(replace(SKELETON, is_recomputing=False),))
    bad = Values(1, (4, 4))
    for rule in (
        "recompute_some_layer",
        "limit_link_use",
        "keep_pinned_layers",
        "keep_pinned_recompute",
        "recompute_every_layer",
    ):
        assert keeps(rule, free, bad)


def test_rules_on_times_are_those_of_the_slowest_stage() -> None:
    """Stages of 2 and 2 layers take 5 and 4; 8 is enough for 3 and 1, not for 4."""
    assert keeps("keep_user_rules", RULED, replace(GOOD, layers=(3, 1)))
    tight = replace(RULED.skeletons[0], clauses=(AnyOf((replace(SHORT, most=4),)),))
    assert not keeps("keep_user_rules", replace(RULED, skeletons=(tight,)), GOOD)
