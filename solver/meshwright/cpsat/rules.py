"""The constraints, one function each; RULES is the table of contents of the model.

Everything is linear in the variables of a skeleton, which are all 0 unless it is
chosen: the relaxation stays tight and nothing needs to be enforced conditionally.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.cpsat.ortools_import import CpModel
from meshwright.cpsat.problem import Problem
from meshwright.cpsat.variables import SkeletonVars

SHARE_UNIT = 10_000
"""Link shares are compared in hundredths of a percent, rounded down."""


def choose_one(model: CpModel, _problem: Problem, every: list[SkeletonVars]) -> None:
    """Ensure that exactly one skeleton is chosen."""
    model.add_exactly_one(skeleton.chosen for skeleton in every)


def place_all_layers(
    model: CpModel, problem: Problem, every: list[SkeletonVars]
) -> None:
    """Ensure that the stages hold all layers, and each at least its fewest."""
    for skeleton in every:
        model.add(sum(skeleton.layers) == problem.layers * skeleton.chosen)
        for layers, stage in zip(skeleton.layers, skeleton.choice.stages, strict=True):
            model.add(layers >= stage.least * skeleton.chosen)


def recompute_own_layers(
    model: CpModel, _problem: Problem, every: list[SkeletonVars]
) -> None:
    """Ensure that stages recompute their own layers, and that someone does."""
    for skeleton in every:
        if skeleton.choice.is_recomputing:
            model.add(sum(skeleton.recomputed) >= skeleton.chosen)
        for layers, recomputed in zip(
            skeleton.layers, skeleton.recomputed, strict=True
        ):
            model.add(recomputed <= layers)


def fit_memory(model: CpModel, _problem: Problem, every: list[SkeletonVars]) -> None:
    """Ensure that every stage fits in the memory of its GPUs."""
    for skeleton in every:
        for e, stage in enumerate(skeleton.choice.stages):
            needed = stage.per_layer * skeleton.layers[e]
            freed = stage.freed * skeleton.recomputed[e]
            model.add(needed - freed <= stage.room * skeleton.chosen)


def time_slowest_stages(
    model: CpModel, problem: Problem, every: list[SkeletonVars]
) -> None:
    """Ensure that the longest pace and the longest sync are those of some stage.

    Minimising makes `>=` enough, but for a limit on link use: there a slower step
    would be a way out, so the maximum is exact.
    """
    for skeleton in every:
        stages = range(len(skeleton.layers))
        paces = [skeleton.pace_ticks(e) for e in stages]
        syncs = [skeleton.sync_ticks(e) for e in stages]
        if problem.link_share is None:
            for pace, sync in zip(paces, syncs, strict=True):
                model.add(skeleton.longest_pace >= pace)
                model.add(skeleton.longest_sync >= sync)
        else:
            model.add_max_equality(skeleton.longest_pace, paces)
            model.add_max_equality(skeleton.longest_sync, syncs)


def keep_links_idle(
    model: CpModel, problem: Problem, every: list[SkeletonVars]
) -> None:
    """Ensure that no link is busy for more than its share of the step."""
    if problem.link_share is None:
        return
    share = int(problem.link_share * SHARE_UNIT)
    for skeleton in every:
        step = skeleton.step_ticks()
        for e, stage in enumerate(skeleton.choice.stages):
            for use in stage.links:
                busy = (
                    use.base * skeleton.chosen
                    + use.per_layer * skeleton.layers[e]
                    + use.per_recomputed * skeleton.recomputed[e]
                )
                model.add(SHARE_UNIT * busy <= share * step)


def keep_pinned_stages(
    model: CpModel, problem: Problem, every: list[SkeletonVars]
) -> None:
    """Ensure that stages have the layers and recomputed layers that are pinned."""
    for skeleton in every:
        for wanted, variables in (
            (problem.pinned_layers, skeleton.layers),
            (problem.pinned_recompute, skeleton.recomputed),
        ):
            if wanted is not None:
                for value, variable in zip(wanted, variables, strict=True):
                    model.add(variable == value * skeleton.chosen)


RULES: tuple[Callable[[CpModel, Problem, list[SkeletonVars]], None], ...] = (
    choose_one,
    place_all_layers,
    recompute_own_layers,
    fit_memory,
    time_slowest_stages,
    keep_links_idle,
    keep_pinned_stages,
)
