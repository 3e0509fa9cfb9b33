"""Builds the model of a problem: variables, rules and hints, without an objective."""

from __future__ import annotations

from meshwright.cpsat.constraints import RULES
from meshwright.cpsat.ortools_import import CpModel, new_model
from meshwright.cpsat.problem import Pairs, Problem
from meshwright.cpsat.variables import SkeletonVars, make_variables


def build(problem: Problem) -> tuple[CpModel, list[SkeletonVars]]:
    """Return the model of a problem, without objective, and its variables."""
    model = new_model()
    skeletons = make_variables(model, problem)
    for rule in RULES:
        rule(model, problem, skeletons)
    if problem.hint is not None:
        index, split = problem.hint
        for skeleton in skeletons[:index] + skeletons[index + 1 :]:
            _hint_not_chosen(model, skeleton)
        _hint_split(model, skeletons[index], split)
    return model, skeletons


def _hint_split(model: CpModel, skeleton: SkeletonVars, split: Pairs) -> None:
    """Hint a split with all that follows from it: partial hints are of no use."""
    stages = skeleton.choice.stages
    for e, (layers, recomputed) in enumerate(split):
        model.add_hint(skeleton.layers[e], layers)
        model.add_hint(skeleton.recomputed[e], recomputed)
    filled = list(zip(stages, split, strict=True))
    pace = max(stage.pace.of(*layers) for stage, layers in filled)
    sync = max(stage.sync.of(*layers) for stage, layers in filled)
    model.add_hint(skeleton.chosen, True)
    model.add_hint(skeleton.in_each_chunk, skeleton.choice.in_each_chunk(split))
    model.add_hint(skeleton.longest_pace, pace)
    model.add_hint(skeleton.longest_sync, sync)


def _hint_not_chosen(model: CpModel, skeleton: SkeletonVars) -> None:
    model.add_hint(skeleton.chosen, False)
    ticks = (skeleton.longest_pace, skeleton.longest_sync)
    counts = (*skeleton.layers, *skeleton.recomputed, skeleton.in_each_chunk)
    for variable in (*counts, *ticks):
        model.add_hint(variable, 0)
