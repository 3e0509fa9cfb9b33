"""Each CP-SAT rule alone: with nothing to restrict, with what it allows and forbids.

A model gets the variables of a problem and one rule. Then some variables are fixed, and
CP-SAT says whether the rest can follow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from ortools.sat.python.cp_model import OPTIMAL, CpModel, CpSolver

from meshwright.cpsat import rules
from meshwright.cpsat.problem import LinkUse, Problem, SkeletonChoice, StageChoice
from meshwright.cpsat.variables import SkeletonVars, make_variables

NOTHING: dict[str, Any] = {
    "layer": 0, "recompute": 0, "pace_layer": 0, "pace_recompute": 0, "sync_layer": 0,
    "least": 0, "most": 9, "extra": 0, "pace_extra": 0, "sync": 0, "room": 99,
    "per_layer": 0, "freed": 0,
}  # fmt: skip
"""A stage that takes no time and no memory."""


def stage(**fields: Any) -> StageChoice:
    """Return a stage with these fields, nothing else to restrict."""
    return StageChoice(**NOTHING | fields)


def problem(*stages: StageChoice, recomputing: bool = False, **fields: Any) -> Problem:
    """Return a problem of one skeleton over eight layers."""
    choice = SkeletonChoice(stages, recomputing)
    return Problem((choice,), **{"layers": 8, "horizon": 1_000} | fields)


TWO = Problem((SkeletonChoice((stage(),)), SkeletonChoice((stage(),))), 8, 1_000)

WIDE = problem(stage(least=2), stage(least=3))
SAVING = problem(stage(freed=1), stage(freed=1), recomputing=True)
FULL = problem(stage(per_layer=10, freed=4, room=70))
PACED = problem(
    stage(pace_layer=2, pace_recompute=1, pace_extra=3, sync_layer=1, freed=1),
    stage(pace_layer=5, sync=6),
)
BUSY = problem(
    stage(layer=10, freed=1, recompute=5, links=(LinkUse(8, 2, 4),)), link_share=0.25
)
UNLIMITED = problem(stage(links=(LinkUse(900, 90, 90),)))
PINNED = problem(
    stage(freed=1), stage(freed=1), pinned_layers=(3, 5), pinned_recompute=(0, 2)
)


class Case(NamedTuple):
    """Values of variables, and whether the rule takes them.

    `chosen` has one value for each skeleton; all other values are of the first.
    """

    problem: Problem
    values: dict[str, tuple[int, ...]]
    is_feasible: bool


def yes(own: Problem, **values: tuple[int, ...]) -> Case:
    return Case(own, values, True)


def no(own: Problem, **values: tuple[int, ...]) -> Case:
    return Case(own, values, False)


ON, OFF = (1,), (0,)

CASES = {
    rules.choose_one: {
        "trivial: one skeleton": yes(WIDE, chosen=ON),
        "feasible: the second of two": yes(TWO, chosen=(0, 1)),
        "infeasible: none": no(TWO, chosen=(0, 0)),
        "infeasible: both": no(TWO, chosen=(1, 1)),
    },
    rules.place_all_layers: {
        "trivial: not chosen, no layers": yes(WIDE, chosen=OFF, layers=(0, 0)),
        "feasible: all layers": yes(WIDE, chosen=ON, layers=(2, 6)),
        "infeasible: a layer left": no(WIDE, chosen=ON, layers=(3, 4)),
        "infeasible: a layer too many": no(WIDE, chosen=ON, layers=(4, 5)),
        "infeasible: fewer than the fewest": no(WIDE, chosen=ON, layers=(6, 2)),
        "infeasible: not chosen, with layers": no(WIDE, chosen=OFF, layers=(3, 5)),
    },
    rules.recompute_own_layers: {
        "trivial: not chosen": yes(SAVING, chosen=OFF, recomputed=(0, 0)),
        "trivial: need not recompute": yes(WIDE, chosen=ON, recomputed=(0, 0)),
        "feasible: all of one": yes(
            SAVING, chosen=ON, layers=(3, 5), recomputed=(3, 0)
        ),
        "infeasible: nobody does": no(SAVING, chosen=ON, recomputed=(0, 0)),
        "infeasible: more than it has": no(
            SAVING, chosen=ON, layers=(3, 5), recomputed=(4, 0)
        ),
    },
    rules.fit_memory: {
        "trivial: no memory": yes(WIDE, chosen=ON, layers=(9, 9)),
        "feasible: 7 x 10 = 70": yes(FULL, chosen=ON, layers=(7,), recomputed=(0,)),
        "feasible: 8 x 10 - 3 x 4 = 68": yes(
            FULL, chosen=ON, layers=(8,), recomputed=(3,)
        ),
        "infeasible: 8 x 10 - 2 x 4 = 72": no(
            FULL, chosen=ON, layers=(8,), recomputed=(2,)
        ),
        "infeasible: not chosen, no room": no(
            FULL, chosen=OFF, layers=(1,), recomputed=(0,)
        ),
    },
    rules.time_slowest_stages: {
        "trivial: no time": yes(WIDE, chosen=ON, longest_pace=OFF, longest_sync=OFF),
        "feasible: paces 4 x 2 + 1 + 3 and 3 x 5, syncs 4 and 6": yes(
            PACED, chosen=ON, layers=(4, 3), recomputed=(1, 0),
            longest_pace=(15,), longest_sync=(6,),
        ),
        "feasible: longer, where no link has a limit": yes(
            PACED, chosen=ON, layers=(4, 3), longest_pace=(99,), longest_sync=(99,)
        ),
        "infeasible: a stage has a longer pace": no(
            PACED, chosen=ON, layers=(4, 3), longest_pace=(14,)
        ),
        "infeasible: a stage has a longer sync": no(
            PACED, chosen=ON, layers=(4, 3), longest_sync=(5,)
        ),
        "infeasible: slower than any stage, to keep links idle": no(
            BUSY, chosen=ON, layers=(8,), longest_pace=ON
        ),
    },
    rules.keep_links_idle: {
        "trivial: no limit": yes(UNLIMITED, chosen=ON, layers=(8,)),
        "trivial: not chosen": yes(BUSY, chosen=OFF, layers=(0,), recomputed=(0,)),
        "feasible: 8 + 8 x 2 = 24 of 80 + 16": yes(
            BUSY, chosen=ON, layers=(8,), recomputed=(0,), longest_pace=(16,)
        ),
        "infeasible: 24 of 80 + 15": no(
            BUSY, chosen=ON, layers=(8,), recomputed=(0,),
            longest_pace=(15,), longest_sync=OFF,
        ),
        "infeasible: 24 + 4 of 80 + 5 + 16": no(
            BUSY, chosen=ON, layers=(8,), recomputed=ON,
            longest_pace=(16,), longest_sync=OFF,
        ),
    },
    rules.keep_pinned_stages: {
        "trivial: nothing pinned": yes(WIDE, chosen=ON, layers=(9, 9)),
        "trivial: not chosen": yes(PINNED, chosen=OFF, layers=(0, 0)),
        "feasible: as pinned": yes(
            PINNED, chosen=ON, layers=(3, 5), recomputed=(0, 2)
        ),
        "infeasible: other layers": no(PINNED, chosen=ON, layers=(4, 4)),
        "infeasible: other recomputed layers": no(PINNED, chosen=ON, recomputed=(0, 1)),
    },
}  # fmt: skip


def fix(model: CpModel, every: list[SkeletonVars], case: Case) -> None:
    for name, values in case.values.items():
        own = getattr(every[0], name)
        variables = own if isinstance(own, list) else [own]
        if name == "chosen":
            variables = [skeleton.chosen for skeleton in every]
        for variable, value in zip(variables, values, strict=True):
            model.add(variable == value)


@pytest.mark.parametrize(
    ("rule", "case"),
    [
        pytest.param(rule, case, id=f"{rule.__name__}, {name}")
        for rule, cases in CASES.items()
        for name, case in cases.items()
    ],
)
def test_rule_alone(rule: Any, case: Case) -> None:
    model = CpModel()
    every = make_variables(model, case.problem)
    rule(model, case.problem, every)
    fix(model, every, case)
    assert (CpSolver().solve(model) == OPTIMAL) == case.is_feasible


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_every_rule_has_trivial_feasible_and_infeasible_cases(rule: Any) -> None:
    words = {name.partition(":")[0]: case for name, case in CASES[rule].items()}
    assert {*words} == {"trivial", "feasible", "infeasible"}
    for name, case in CASES[rule].items():
        assert case.is_feasible != name.startswith("infeasible"), name
