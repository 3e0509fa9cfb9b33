"""Rules on sums: the stages, layers, sequences and GPUs of a plan add up.

The lattice has no rows that break them, so they only say why a plan that somebody asks
for is no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from meshwright.frameworks.base.registry import framework_of, pinned_chunks
from meshwright.plans.columns import Bools
from meshwright.plans.plan import Plan
from meshwright.plans.rule import BrokenRule, Rule, broken
from meshwright.plans.skeletons import ONE_F_ONE_B, Skeletons, to_unplaced_row
from meshwright.spec.pins import Pins
from meshwright.spec.plan_fields import SCHEDULES
from meshwright.spec.spec import Spec

SOURCE = "the arithmetic of a plan"
LAYERS_PLACED = "the stages hold all layers"

WORLD_SIZE = Rule(
    "world_size",
    "the degrees multiply to the number of GPUs",
    SOURCE,
    lambda spec, rows: rows.tp * rows.pp * rows.cp * rows.dp == spec.cluster.gpus,
    "{tp * pp * cp * dp:product}, the cluster has {spec.cluster.gpus}",
)

WORLD_DIVISIBLE = Rule(
    "world_size",
    WORLD_SIZE.sentence,
    SOURCE,
    lambda spec, rows: spec.cluster.gpus % (rows.tp * rows.pp * rows.cp * rows.dp) == 0,
    "{tp * pp * cp * dp:product}, {spec.cluster.gpus} GPUs mod {tp * pp * cp * dp} = "
    "{spec.cluster.gpus % (tp * pp * cp * dp)}",
)
"""The same rule on degrees that others may multiply."""

BATCH = Rule(
    "batch",
    "the micro-batches make up the global batch",
    SOURCE,
    lambda spec, rows: (
        rows.dp * rows.micro_batch * rows.microbatches == spec.training.global_batch
    ),
    "{dp * micro_batch * microbatches:product}, the batch has "
    "{spec.training.global_batch} sequences",
)

MICROBATCH_DIVISIBLE = Rule(
    "microbatch_divisible",
    "dp x micro_batch divides the global batch",
    SOURCE,
    lambda spec, rows: spec.training.global_batch % (rows.dp * rows.micro_batch) == 0,
    "{spec.training.global_batch} sequences / (dp {dp} x micro_batch {micro_batch}) = "
    "{spec.training.global_batch / (dp * micro_batch)}",
)


def _has_chunks(spec: Spec, rows: Skeletons) -> Bools:
    layers, may_differ = spec.model.n_layers, framework_of(spec).has_uneven_chunks
    largest = -(-layers // rows.pp)
    is_enough = (rows.pp * rows.vpp <= layers) | (pinned_chunks(spec) is not None)
    has_layers = (layers % rows.pp == 0) | (may_differ & is_enough)
    return np.asarray((rows.vpp == 1) | (has_layers & (largest % rows.vpp == 0)))


EXPERT_RULES = (
    Rule(
        "experts_exist",
        "expert parallelism needs a model with experts",
        SOURCE,
        lambda spec, rows: rows.ep == 1,
        "ep {ep}, the model is dense",
        concerns=lambda spec: spec.model.moe is None,
    ),
    Rule(
        "experts_divisible",
        "ep divides the experts",
        SOURCE,
        lambda spec, rows: _experts(spec) % rows.ep == 0,
        "{spec.model.moe.n_experts} experts mod ep {ep} = "
        "{spec.model.moe.n_experts % ep}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "experts_fit",
        "ep is at most the GPUs of a stage",
        SOURCE,
        lambda spec, rows: rows.ep <= rows.tp * rows.cp * rows.dp,
        "ep {ep} > {tp * cp * dp} GPUs",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "experts_share_ranks",
        "ep divides the GPUs of a stage",
        SOURCE,
        lambda spec, rows: (
            (rows.ep > rows.tp * rows.cp * rows.dp)
            | (rows.tp * rows.cp * rows.dp % rows.ep == 0)
        ),
        "{tp * cp * dp} GPUs mod ep {ep} = {tp * cp * dp % ep}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
)
"""Rules on how experts are spread; a plan that breaks one has no price."""

FIELD_RULES = (
    *EXPERT_RULES,
    Rule(
        "zero_stage",
        "ZeRO has the stages 0 to 3",
        SOURCE,
        lambda spec, rows: rows.zero <= 3,
        "zero {zero} > 3",
    ),
    Rule(
        "zero_shares",
        "ZeRO shards over the GPUs of dp_shard x cp; beside replicas dp_shard is not 1",
        SOURCE,
        lambda spec, rows: (
            (rows.zero == 0) | (rows.dp_shard > 1) | (rows.dp_replicate == 1)
        ),
        "zero {zero}, dp_shard {dp_shard}, dp_replicate {dp_replicate}",
    ),
    Rule(
        "shards_need_zero",
        "dp_shard counts the shards of ZeRO; without it copies are dp_replicate",
        SOURCE,
        lambda spec, rows: (rows.zero > 0) | (rows.dp_shard == 1),
        "zero {zero}, dp_shard {dp_shard}",
    ),
    Rule(
        "sequence_parallel_needs_tp",
        "sequence parallelism splits what tensor parallelism leaves whole",
        SOURCE,
        lambda spec, rows: ~rows.sequence_parallel | (rows.tp > 1),
        "sequence_parallel {sequence_parallel}, tp {tp}",
    ),
    Rule(
        "schedule_needs_pipeline",
        "only a pipeline has a schedule to choose",
        SOURCE,
        lambda spec, rows: (rows.schedule == ONE_F_ONE_B) | (rows.pp > 1),
        "schedule {schedule}, pp {pp}",
    ),
    Rule(
        "interleaving_needs_pipeline",
        f"the stages of a pipeline are interleaved, under {SCHEDULES[ONE_F_ONE_B]}",
        SOURCE,
        lambda spec, rows: (
            (rows.vpp == 1) | ((rows.pp > 1) & (rows.schedule == ONE_F_ONE_B))
        ),
        "vpp {vpp}, pp {pp}, schedule {schedule}",
    ),
    Rule(
        "chunks_even",
        "under interleaving vpp divides the layers of the largest stage, and those of "
        "every stage where a framework has no uneven chunks",
        SOURCE,
        _has_chunks,
        "{spec.model.n_layers} layers, {pp * vpp:product} chunks",
    ),
)
"""Rules on fields beside degrees and batch, which every row of the lattice keeps."""


def _experts(spec: Spec) -> int:
    return spec.model.moe.n_experts if spec.model.moe else 1


def row_rules(spec: Spec) -> list[Rule]:
    """Return the rules on sums that apply to every plan of a spec."""
    pins = spec.pins
    batch = [BATCH] if pins.microbatches else []
    batch += [MICROBATCH_DIVISIBLE] if pins.micro_batch and not batch else []
    fields = [rule for rule in FIELD_RULES if rule.concerns(spec)]
    return [WORLD_SIZE, *batch, *fields, *_pinned_layers(spec), *_pinned_dp(pins)]


def _pinned_layers(spec: Spec) -> Iterable[Rule]:
    """Yield the rules that pinned layers are of all stages and of the whole model."""
    counts = {"layers": spec.pins.layers, "recompute_layers": spec.pins.stage_recompute}
    for name, layers in counts.items():
        if layers is not None:
            yield _stage_rule(name, len(layers))
    if spec.pins.layers is not None:
        yield Rule(
            "layers_placed",
            LAYERS_PLACED,
            SOURCE,
            lambda spec, rows: np.full(
                len(rows.tp), sum(spec.pins.layers or ()) == spec.model.n_layers
            ),
            _sum_of_layers(spec, spec.pins.layers),
        )


def _stage_rule(name: str, stages: int) -> Rule:
    """Return the rule that a pinned list has a number for every stage."""
    return Rule(
        "stages",
        "there is a stage per pipeline rank",
        SOURCE,
        lambda _spec, rows: rows.pp == stages,
        f"{name} of {stages} stages, pp {{pp}}",
    )


def _sum_of_layers(spec: Spec, layers: Sequence[int]) -> str:
    """Return how many layers stages have together, and how many there are."""
    added = f"{' + '.join(map(str, layers))} = {sum(layers)}"
    return f"{added}, the model has {spec.model.n_layers}"


def _pinned_dp(pins: Pins) -> Iterable[Rule]:
    """Yield the rule that shards and replicas make up dp, if all are pinned."""
    pin = pins.dp
    if pin is not None and pins.dp_shard and pins.dp_replicate:
        yield Rule(
            "dp_is_a_product",
            "dp is dp_replicate x dp_shard",
            SOURCE,
            lambda _spec, rows: np.array([pin.accepts(int(dp)) for dp in rows.dp]),
            f"{{dp_replicate * dp_shard:product}}, dp is {pin}",
        )


def broken_sums_of(spec: Spec, plan: Plan) -> list[BrokenRule]:
    """Return the rules on sums that a plan breaks."""
    layers = sum(stage.layers for stage in plan.stages)
    stages = ("stages", "there is a stage per pipeline rank", len(plan.stages), plan.pp)
    return [
        *unequal([stages]),
        *([] if layers == spec.model.n_layers else [_unplaced(spec, plan)]),
        *broken([BATCH, WORLD_SIZE], spec, to_unplaced_row(plan)),
    ]


def _unplaced(spec: Spec, plan: Plan) -> BrokenRule:
    """Return the broken rule that the stages hold all layers."""
    numbers = _sum_of_layers(spec, [stage.layers for stage in plan.stages])
    return BrokenRule(
        rule="layers_placed",
        sentence=f"{LAYERS_PLACED} ({numbers})",
        arithmetic=numbers,
        source=SOURCE,
    )


def unequal(checks: Iterable[tuple[str, str, int, int]]) -> list[BrokenRule]:
    """Return the broken rules among checks (rule, sentence, have, need)."""
    return [
        BrokenRule(rule=rule, sentence=sentence, have=have, need=need)
        for rule, sentence, have, need in checks
        if have != need
    ]
