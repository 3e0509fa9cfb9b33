"""Rules on splits: what a plan's stages hold and recompute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.frameworks.base.framework import (
    PER_STAGE,
    STAGE_LAYERS,
    Framework,
    RecomputeScope,
    fewest_in_scope,
)
from meshwright.frameworks.base.registry import (
    framework_of,
    partition_of,
    pinned_chunks,
)
from meshwright.plans.plan import Plan, most_chunks
from meshwright.plans.rule import BrokenRule
from meshwright.rules.sums import broken_sums_of, unequal
from meshwright.spec.plan_fields import RECOMPUTE_MODES
from meshwright.spec.spec import Spec

CHUNKS_EVEN = "chunks_even"
"""Name of the rule on layers of chunks of interleaved stages."""

RECOMPUTE_SCOPE = "recompute_scope"
"""Name of the rules on how many layers of each stage a framework recomputes."""

SPLIT_RULES = (CHUNKS_EVEN, STAGE_LAYERS, RECOMPUTE_SCOPE)
"""Names of the rules on splits that depend on the framework."""


@dataclass(frozen=True)
class SplitRule:
    """A framework's rule on splits: some split of every skeleton keeps it."""

    name: str
    sentence: str
    source: str
    fails_with: str = ""


def framework_split_rules(framework: Framework) -> list[SplitRule]:
    """Return the rules on splits that a framework has."""
    scopes = {mode: framework.recompute_scope(mode) for mode in RECOMPUTE_MODES}
    return [
        SplitRule(RECOMPUTE_SCOPE, f"{mode} recomputation: {own.sentence}", own.source)
        for mode, own in scopes.items()
        if own.code != PER_STAGE
    ]


def split_rules(spec: Spec, plan: Plan) -> list[BrokenRule]:
    """Return the rules about layers, sequences and ranks that a plan breaks."""
    sums = broken_sums_of(spec, plan)
    if not plan.stages:
        return sums
    excess = sum(stage.recompute_layers > stage.layers for stage in plan.stages)
    has_recompute = sum(stage.recompute_layers for stage in plan.stages) > 0
    checks = [
        ("recompute", "stages recompute no more layers than they have", excess, 0),
        (
            "recompute_mode",
            "layers are recomputed exactly where the mode is not none",
            has_recompute,
            plan.recompute != "none",
        ),
    ]
    framework = framework_of(spec)
    return [
        *sums,
        *unequal(checks),
        *_chunks(spec, plan),
        *_partition(spec, plan),
        *_recompute_scope(framework, plan),
    ]


def _chunks(spec: Spec, plan: Plan) -> Iterator[BrokenRule]:
    """Yield the rule on chunks of interleaved stages, if the plan's break it.

    The largest stage has equal chunks, and no chunk of another has two layers less.
    Pinned stages have any number of layers, as long as no chunk is empty.
    """
    layers, framework = [stage.layers for stage in plan.stages], framework_of(spec)
    pinned = pinned_chunks(spec)
    if pinned is not None and list(pinned) == layers:
        if plan.vpp > most_chunks(layers):
            yield BrokenRule(
                rule=CHUNKS_EVEN,
                sentence="under interleaving every chunk holds a layer, the embedding "
                f"or the loss: {layers} in {plan.vpp} chunks a stage",
            )
        return
    even, over = divmod(sum(layers), plan.pp)
    most = even + (over > 0)
    least = most - plan.vpp if framework.has_uneven_chunks and over else most
    is_whole = most % plan.vpp == 0 and least >= 1
    if plan.vpp > 1 and not (is_whole and least <= min(layers) <= max(layers) <= most):
        kind = "or one less" if framework.has_uneven_chunks else "in every chunk"
        yield BrokenRule(
            rule=CHUNKS_EVEN,
            sentence=f"under interleaving chunks have equally many layers, {kind}: "
            f"{layers} in {plan.vpp} chunks a stage",
        )


def _partition(spec: Spec, plan: Plan) -> Iterator[BrokenRule]:
    """Yield how layers have to be split, if the plan's are split otherwise."""
    partition, layers = partition_of(spec), [stage.layers for stage in plan.stages]
    if partition is None or plan.pp > spec.model.n_layers:
        return
    wanted = list(partition.layers(spec.model, plan.pp))
    if layers != wanted:
        yield BrokenRule(
            rule=STAGE_LAYERS,
            sentence=f"{partition.sentence}: {wanted}, not {layers} "
            f"({partition.source})",
        )


def _recompute_scope(framework: Framework, plan: Plan) -> Iterator[BrokenRule]:
    """Yield the recompute scope of a plan's mode, if the plan is not in it."""
    scope = framework.recompute_scope(plan.recompute, plan.recompute_segment)
    recomputed = np.array([stage.recompute_layers for stage in plan.stages])
    if plan.recompute != "none" and not _is_in_scope(scope, plan, recomputed):
        yield BrokenRule(
            rule=RECOMPUTE_SCOPE,
            sentence=f"{plan.recompute} recomputation: {scope.sentence}, which "
            f"{recomputed.tolist()} are not ({scope.source})",
        )


def _is_in_scope(scope: RecomputeScope, plan: Plan, recomputed: np.ndarray) -> bool:
    layers = np.array([stage.layers for stage in plan.stages])
    columns = (np.array([[scope.code]]), recomputed[None], layers[None])
    allowed = fewest_in_scope(*columns, np.array([[plan.vpp]]))
    return bool((allowed == recomputed).all())
