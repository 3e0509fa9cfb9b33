"""Rules on sums: the stages, layers, sequences and GPUs of a plan add up."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule
from meshwright.spec.spec import Spec


def split_rules(spec: Spec, plan: Plan) -> list[BrokenRule]:
    """Return the rules about layers, sequences and ranks that a plan breaks."""
    layers = sum(stage.layers for stage in plan.stages)
    sequences = plan.dp * plan.micro_batch * plan.microbatches
    n_layers = spec.model.n_layers
    batch = spec.training.global_batch
    gpus = plan.world_size
    world = spec.cluster.gpus
    excess = sum(stage.recompute_layers > stage.layers for stage in plan.stages)
    has_recompute = sum(stage.recompute_layers for stage in plan.stages) > 0
    checks = [
        ("stages", "there is a stage per pipeline rank", len(plan.stages), plan.pp),
        ("layers_placed", "the stages hold all layers", layers, n_layers),
        ("batch", "the micro-batches make up the global batch", sequences, batch),
        ("world_size", "the degrees use every GPU", gpus, world),
        ("recompute", "stages recompute no more layers than they have", excess, 0),
        (
            "recompute_mode",
            "layers are recomputed exactly where the mode is not none",
            has_recompute,
            plan.recompute != "none",
        ),
    ]
    return unequal(checks)


def unequal(checks: Iterable[tuple[str, str, int, int]]) -> list[BrokenRule]:
    """Return the broken rules among checks (rule, sentence, have, need)."""
    return [
        BrokenRule(rule=rule, sentence=sentence, have=have, need=need)
        for rule, sentence, have, need in checks
        if have != need
    ]
