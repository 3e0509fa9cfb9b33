"""The constraints of the model, one function each; RULES is the table of contents.

In the formulas x is 1 for the chosen skeleton and 0 for all others; stage e of it
holds n_e layers, r_e of them recomputed. All variables of a skeleton are 0 where x is,
so every constraint is linear and none is enforced conditionally: the relaxation stays
tight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from meshwright.cpsat.linear_rules import keep_user_rules
from meshwright.cpsat.ortools_import import CpModel, IntVar, LinearExpr
from meshwright.cpsat.problem import Problem
from meshwright.cpsat.variables import SkeletonVars

first, second = itemgetter(0), itemgetter(1)

SHARE_UNIT = 10_000
"""Link shares are compared in hundredths of a percent, rounded down."""


def choose_one_skeleton(
    model: CpModel, _problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that exactly one skeleton is chosen.

    sum of x over all skeletons = 1
    """
    model.add_exactly_one(skeleton.chosen for skeleton in skeletons)


def place_all_layers(
    model: CpModel, problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that the stages hold all layers of the model.

    sum of n_e over the stages = layers * x
    """
    for skeleton in skeletons:
        model.add(sum(skeleton.layers) == problem.layers * skeleton.chosen)


def fill_every_stage(
    model: CpModel, _problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that every stage holds at least its fewest layers.

    n_e >= fewest_layers_e * x
    """
    for skeleton in skeletons:
        for layers, stage in zip(skeleton.layers, skeleton.choice.stages, strict=True):
            model.add(layers >= stage.fewest_layers * skeleton.chosen)


def recompute_some_layer(
    model: CpModel, _problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that a skeleton with recomputation recomputes at least one layer.

    sum of r_e over the stages >= x
    """
    for skeleton in skeletons:
        if skeleton.choice.is_recomputing:
            model.add(sum(skeleton.recomputed) >= skeleton.chosen)


def recompute_held_layers(
    model: CpModel, _problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that a stage recomputes no more layers than it holds.

    r_e <= n_e
    """
    for skeleton in skeletons:
        for held, recomputed in zip(skeleton.layers, skeleton.recomputed, strict=True):
            model.add(recomputed <= held)


def recompute_same_number(
    model: CpModel, _problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that all chunks recompute the same number of layers, if they have it.

    r_e = min(v k, n_e) for one k >= x, with v chunks on every stage. Since k >= x,
    r_e >= min(v, fewest_layers_e) x, which the relaxation would not see.
    """
    for skeleton in skeletons:
        chunks = skeleton.choice.same_in_chunks
        if not chunks:
            continue
        first = chunks * skeleton.in_each_chunk
        for held, recomputed in zip(skeleton.layers, skeleton.recomputed, strict=True):
            model.add_min_equality(recomputed, [first, held])
        if skeleton.choice.is_recomputing:
            for e, stage in enumerate(skeleton.choice.stages):
                fewest = min(chunks, stage.fewest_layers)
                model.add(skeleton.recomputed[e] >= fewest * skeleton.chosen)


def fix_number(model: CpModel, skeleton: SkeletonVars, number: int) -> None:
    """Fix the number of layers that every chunk recomputes.

    min(v k, n) is concave in n, and so no less than its chord over the layers that a
    stage may hold: the relaxation is tight where it bends at one end of them.
    """
    first = number * skeleton.choice.same_in_chunks
    model.add(skeleton.in_each_chunk == number * skeleton.chosen)
    for e, stage in enumerate(skeleton.choice.stages):
        least, most = stage.fewest_layers, stage.most_layers
        at_least, at_most = min(first, least), min(first, most)
        model.add(
            (most - least) * (skeleton.recomputed[e] - at_least)
            >= (at_most - at_least) * (skeleton.layers[e] - least)
        ).only_enforce_if(skeleton.chosen)


def fit_memory(
    model: CpModel, _problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that the layers of every stage fit in the memory left for them.

    memory_e(n_e, r_e) <= capacity_e * x
    """
    for skeleton in skeletons:
        for e, stage in enumerate(skeleton.choice.stages):
            needed = skeleton.amount(e, stage.memory)
            model.add(needed <= stage.capacity * skeleton.chosen)


def time_slowest_stage(
    model: CpModel, problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that the step waits for the slowest stage.

    longest_pace = max over e of pace_e(n_e, r_e)
    """
    for skeleton in skeletons:
        stages = enumerate(skeleton.choice.stages)
        paces = [skeleton.amount(e, stage.pace) for e, stage in stages]
        _bound_by(model, problem, skeleton.longest_pace, paces)


def time_longest_sync(
    model: CpModel, problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that the step waits for the stage that finishes last.

    longest_sync = max over e of sync_e(n_e)
    """
    for skeleton in skeletons:
        stages = enumerate(skeleton.choice.stages)
        syncs = [skeleton.amount(e, stage.sync) for e, stage in stages]
        _bound_by(model, problem, skeleton.longest_sync, syncs)


def _bound_by(
    model: CpModel, problem: Problem, longest: IntVar, ticks: Sequence[LinearExpr]
) -> None:
    """Ensure that a variable is the maximum of expressions.

    As the step is minimised `>=` says as much, and costs less. Under a limit on links
    it does not: there a slower step would be a way to keep the limit.
    """
    if problem.link_share is not None:
        model.add_max_equality(longest, ticks)
        return
    for lower in ticks:
        model.add(longest >= lower)


def limit_link_use(
    model: CpModel, problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that no link is busy for more than its share of the step.

    busy_l(n_e, r_e) <= link_share * step, for every link l of every stage e
    """
    if problem.link_share is None:
        return
    share = int(problem.link_share * SHARE_UNIT)
    for skeleton in skeletons:
        step = skeleton.step_ticks()
        for e, stage in enumerate(skeleton.choice.stages):
            for busy in stage.links:
                model.add(SHARE_UNIT * skeleton.amount(e, busy) <= share * step)


def keep_pinned_layers(
    model: CpModel, problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that stages hold the layers that the user pinned.

    n_e = pinned_layers_e * x
    """
    for skeleton in skeletons:
        _pin(model, skeleton, skeleton.layers, problem.pinned_layers)


def keep_pinned_recompute(
    model: CpModel, problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that stages recompute the layers that the user pinned.

    r_e = pinned_recompute_e * x, and n_e instead where every layer is recomputed
    """
    for skeleton in skeletons:
        has_all = skeleton.choice.recomputes_all
        variables = skeleton.layers if has_all else skeleton.recomputed
        _pin(model, skeleton, variables, problem.pinned_recompute)


def recompute_every_layer(
    model: CpModel, problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that all layers are recomputed, where not some alone may be.

    r_e = n_e
    """
    if not problem.recomputes_every_layer:
        return
    for skeleton in skeletons:
        if skeleton.choice.is_recomputing:
            pairs = zip(skeleton.layers, skeleton.recomputed, strict=True)
            for held, recomputed in pairs:
                model.add(recomputed == held)


def avoid_forbidden_splits(
    model: CpModel, _problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that no split is one that was found to break a rule.

    (n, r) differs from each of them in some stage
    """
    for skeleton in skeletons:
        if skeleton.choice.forbidden:
            model.add_forbidden_assignments(
                [*skeleton.layers, *skeleton.recomputed],
                [(*map(first, s), *map(second, s)) for s in skeleton.choice.forbidden],
            )


def _pin(
    model: CpModel,
    skeleton: SkeletonVars,
    variables: Sequence[IntVar],
    pinned: tuple[int, ...] | None,
) -> None:
    if pinned is None:
        return
    for variable, value in zip(variables, pinned, strict=True):
        model.add(variable == value * skeleton.chosen)


RULES: tuple[Callable[[CpModel, Problem, Sequence[SkeletonVars]], None], ...] = (
    choose_one_skeleton,
    place_all_layers,
    fill_every_stage,
    recompute_some_layer,
    recompute_held_layers,
    recompute_same_number,
    fit_memory,
    time_slowest_stage,
    time_longest_sync,
    limit_link_use,
    keep_pinned_layers,
    keep_pinned_recompute,
    recompute_every_layer,
    avoid_forbidden_splits,
    keep_user_rules,
)
