"""Every constraint on splits by itself: values that keep it, and that break it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from ortools.sat.python.cp_model import CpSolver

from meshwright.planner.pipeline import (
    AnyOf,
    LinearRule,
    Pipeline,
    PipelineStage,
    StageAmount,
)
from meshwright.planner.split_model import CONSTRAINTS, split_model

STAGE = PipelineStage(
    fill=StageAmount(1, 2, 1),
    pace=StageAmount(3, 4, 1),
    sync=StageAmount(5, 1),
    memory=StageAmount(0, 10, -6),
    capacity=25,
    fewest_layers=1,
    most_layers=4,
    links=(StageAmount(0, 3),),
)
PIPELINE = Pipeline((STAGE, STAGE), layers=4, horizon=1000, is_recomputing=True)
SAME = replace(PIPELINE, same_in_chunks=1)
LIMITED = replace(PIPELINE, link_share=0.25)

SECONDS = (StageAmount(0, 2, 1), StageAmount(0, 2, 1))
FEW_LAYERS = LinearRule((1, -1), (0, 0), most=3)
NEVER = LinearRule((0, 0), (0, 0), most=-1)
SHORT = LinearRule((0, 0), (0, 0), most=8, of_slowest=SECONDS, of_last=SECONDS[:0])
RULED = replace(
    PIPELINE,
    clauses=(AnyOf((FEW_LAYERS, NEVER)), AnyOf((SHORT,))),
    seconds=SECONDS,
)
"""n_0 - n_1 <= 3, or never; and the slowest stage takes 8 at most."""


@dataclass(frozen=True)
class Values:
    """Values of all variables of a pipeline."""

    layers: tuple[int, int] = (0, 0)
    recomputed: tuple[int, int] = (0, 0)
    pace: int = 0
    sync: int = 0
    in_each_chunk: int = 0


GOOD = Values((2, 2), (1, 0), pace=12, sync=7)
"""Pace 3 + 2 x 4 + 1 and sync 5 + 2; fill 2 x (1 + 2 x 2) + 1, so the step is 30."""

CONSTRAINT = {constraint.__name__: constraint for constraint in CONSTRAINTS}

CASES: dict[str, tuple[Pipeline, Values, Values]] = {
    # constraint: (a pipeline, values that keep it, values that break it)
    "place_all_layers": (PIPELINE, GOOD, replace(GOOD, layers=(2, 1))),
    "fill_every_stage": (PIPELINE, GOOD, replace(GOOD, layers=(4, 0))),
    "recompute_some_layer": (PIPELINE, GOOD, replace(GOOD, recomputed=(0, 0))),
    "recompute_held_layers": (PIPELINE, GOOD, replace(GOOD, recomputed=(3, 0))),
    "recompute_same_number": (
        SAME,
        replace(GOOD, layers=(3, 1), recomputed=(2, 1), in_each_chunk=2),
        replace(GOOD, recomputed=(2, 1), in_each_chunk=2),
    ),
    # 3 layers take 30 chunks of 25; one recomputed gives back 6.
    "fit_memory": (
        PIPELINE,
        replace(GOOD, layers=(3, 1)),
        replace(GOOD, layers=(3, 1), recomputed=(0, 0)),
    ),
    "time_slowest_stage": (PIPELINE, GOOD, replace(GOOD, pace=11)),
    "time_longest_sync": (PIPELINE, GOOD, replace(GOOD, sync=6)),
    # A link is busy for 3 x 2 ticks of 30; 3 x 3 ticks are more than a quarter of 30.
    "limit_link_use": (LIMITED, GOOD, replace(GOOD, layers=(3, 1))),
    "keep_pinned_layers": (
        replace(PIPELINE, pinned_layers=(2, 2)),
        GOOD,
        replace(GOOD, layers=(3, 1)),
    ),
    "keep_pinned_recompute": (
        replace(PIPELINE, pinned_recompute=(1, 0)),
        GOOD,
        replace(GOOD, recomputed=(0, 1)),
    ),
    "recompute_every_layer": (
        replace(PIPELINE, recomputes_every_layer=True),
        replace(GOOD, recomputed=GOOD.layers),
        GOOD,
    ),
    "avoid_forbidden_splits": (
        PIPELINE.without(((3, 1), (1, 0))),
        GOOD,
        replace(GOOD, layers=(3, 1)),
    ),
    "keep_user_rules": (RULED, GOOD, replace(GOOD, layers=(4, 0))),
}


def keeps(name: str, pipeline: Pipeline, values: Values) -> bool:
    """Return whether values of the variables keep one constraint."""
    model = split_model(pipeline, [CONSTRAINT[name]])
    variables = (*model.layers, *model.recomputed)
    for variable, value in zip(
        variables, (*values.layers, *values.recomputed), strict=True
    ):
        model.cp.add(variable == value)
    model.cp.add(model.longest_pace == values.pace)
    model.cp.add(model.longest_sync == values.sync)
    model.cp.add(model.in_each_chunk == values.in_each_chunk)
    solver = CpSolver()
    solver.parameters.num_workers = 1
    return solver.status_name(solver.solve(model.cp)) == "OPTIMAL"


def test_every_constraint_has_a_case() -> None:
    assert list(CASES) == [constraint.__name__ for constraint in CONSTRAINTS]


@pytest.mark.parametrize("name", CASES)
def test_values_keep_or_break_a_constraint(name: str) -> None:
    pipeline, good, bad = CASES[name]
    assert keeps(name, pipeline, good)
    assert not keeps(name, pipeline, bad)


@pytest.mark.parametrize("name", ["time_slowest_stage", "time_longest_sync"])
def test_a_slower_step_is_no_way_to_keep_a_limit_on_links(name: str) -> None:
    """Without a limit the time may be longer than it must be: minimising mends that."""
    slower = replace(GOOD, pace=GOOD.pace + 1, sync=GOOD.sync + 1)
    assert keeps(name, PIPELINE, slower)
    assert not keeps(name, LIMITED, slower)
    assert keeps(name, LIMITED, GOOD)


def test_pinned_recomputed_layers_are_layers_where_all_are_recomputed() -> None:
    """Recomputation is part of every layer there, and no layer counts beside it."""
    name, all_layers = "keep_pinned_recompute", replace(PIPELINE, recomputes_all=True)
    pipeline = replace(all_layers, pinned_recompute=(3, 1))
    assert keeps(name, pipeline, Values((3, 1)))
    assert not keeps(name, pipeline, Values((2, 2)))


def test_interleaved_chunks_recompute_the_same_number_each() -> None:
    """Two chunks a stage recompute 1 of 2 layers each, so that the stage redoes 2."""
    pipeline = replace(PIPELINE, same_in_chunks=2, layers=8)
    name, split = "recompute_same_number", Values((4, 4), in_each_chunk=1)
    assert keeps(name, pipeline, replace(split, recomputed=(2, 2)))
    assert not keeps(name, pipeline, replace(split, recomputed=(1, 1)))


def test_rules_ask_nothing_where_nothing_is_limited_or_pinned() -> None:
    """Values that break all of them: no limit, no pin, nothing to recompute."""
    free = replace(PIPELINE, is_recomputing=False)
    bad = Values((4, 4))
    for name in (
        "recompute_some_layer",
        "limit_link_use",
        "keep_pinned_layers",
        "keep_pinned_recompute",
        "recompute_every_layer",
    ):
        assert keeps(name, free, bad)


def test_rules_on_times_are_those_of_the_slowest_stage() -> None:
    """Stages of 2 and 2 layers take 5 and 4; 8 is enough for 3 and 1, not for 4."""
    assert keeps("keep_user_rules", RULED, replace(GOOD, layers=(3, 1)))
    tight = replace(RULED, clauses=(AnyOf((replace(SHORT, most=4),)),))
    assert not keeps("keep_user_rules", tight, GOOD)
