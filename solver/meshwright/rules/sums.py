"""Rules on sums and splits: stages, layers, sequences and GPUs of a plan add up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from meshwright.plans.columns import Bools
from meshwright.plans.plan import Plan, most_chunks, most_leading
from meshwright.plans.rule import BrokenRule, Rule, broken
from meshwright.plans.schedules import IS_V, schedule_named
from meshwright.plans.skeletons import Skeletons, to_unplaced_row
from meshwright.spec.cluster import StagedCluster
from meshwright.spec.plan_fields import (
    AXES,
    ONE_F_ONE_B,
    RECOMPUTE_MODES,
    SCHEDULES,
    Pins,
)
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import Meshes

PARTS = "the parts of the cluster"


def part_degree_rules(spec: Spec) -> list[Rule]:
    """Return the rule that each part holds whole stages, where stages lie on parts."""
    return [STAGES_FILL_PARTS] if isinstance(spec.cluster, StagedCluster) else []


def part_mesh_rules(spec: Spec, meshes: Meshes) -> list[Rule]:
    """Return the rule that no host holds stages of two parts."""
    cluster = spec.cluster
    if not isinstance(cluster, StagedCluster):
        return []
    parts = cluster.order

    def holds(_spec: Spec, rows: Skeletons) -> Bools:
        inside = meshes[rows.mesh, AXES.index("pp"), 0]
        whole = [_stages(spec, rows, part.gpus) % inside == 0 for part in parts]
        return np.asarray(np.all(whole, axis=0))

    sentence = "the stages that share hosts are of one part"
    return [Rule("hosts_of_one_part", sentence, PARTS, holds, "pp {pp}")]


def _stages(spec: Spec, rows: Skeletons, gpus: int) -> Bools:
    """Return the number of stages on a part with this many GPUs."""
    return np.asarray(rows.pp * gpus // spec.cluster.gpus)


def _fills_parts(spec: Spec, rows: Skeletons) -> Bools:
    cluster = spec.cluster
    assert isinstance(cluster, StagedCluster)
    whole = [rows.pp * part.gpus % cluster.gpus == 0 for part in cluster.order]
    return np.asarray(np.all(whole, axis=0))


STAGES_FILL_PARTS = Rule(
    "stages_fill_parts",
    "each part holds a whole number of stages",
    PARTS,
    _fills_parts,
    "pp {pp}",
)

ARITHMETIC = "the arithmetic of a plan"
LAYERS_PLACED = "the stages hold all layers"

WORLD_SIZE = Rule(
    "world_size",
    "the degrees multiply to the number of GPUs",
    ARITHMETIC,
    lambda spec, rows: rows.tp * rows.pp * rows.cp * rows.dp == spec.cluster.gpus,
    "{tp * pp * cp * dp:product}, the cluster has {spec.cluster.gpus}",
)

WORLD_DIVISIBLE = Rule(
    "world_size",
    WORLD_SIZE.sentence,
    ARITHMETIC,
    lambda spec, rows: spec.cluster.gpus % (rows.tp * rows.pp * rows.cp * rows.dp) == 0,
    "{tp * pp * cp * dp:product}, {spec.cluster.gpus} GPUs mod {tp * pp * cp * dp} = "
    "{spec.cluster.gpus % (tp * pp * cp * dp)}",
)
"""The same rule on degrees that others may multiply."""

BATCH = Rule(
    "batch",
    "the micro-batches make up the global batch",
    ARITHMETIC,
    lambda spec, rows: (
        rows.dp * rows.micro_batch * rows.microbatches == spec.training.global_batch
    ),
    "{dp * micro_batch * microbatches:product}, the batch has "
    "{spec.training.global_batch} sequences",
)

MICROBATCH_DIVISIBLE = Rule(
    "microbatch_divisible",
    "dp x micro_batch divides the global batch",
    ARITHMETIC,
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
        ARITHMETIC,
        lambda spec, rows: rows.ep == 1,
        "ep {ep}, the model is dense",
        concerns=lambda spec: spec.model.moe is None,
    ),
    Rule(
        "expert_parts_exist",
        "splitting experts needs a model with experts",
        ARITHMETIC,
        lambda spec, rows: rows.etp == 1,
        "etp {etp}, the model is dense",
        concerns=lambda spec: spec.model.moe is None,
    ),
    Rule(
        "expert_parts",
        "experts are whole, or split over all tensor-parallel GPUs, evenly",
        ARITHMETIC,
        lambda spec, rows: (
            (rows.etp == 1)
            | ((rows.etp == rows.tp) & (expert_width(spec) % rows.etp == 0))
        ),
        "etp {etp}, tp {tp}, width {spec.model.moe.d_ff}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "experts_divisible",
        "ep divides the experts",
        ARITHMETIC,
        lambda spec, rows: _experts(spec) % rows.ep == 0,
        "{spec.model.moe.n_experts} experts mod ep {ep} = "
        "{spec.model.moe.n_experts % ep}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "experts_fit",
        "ep x etp is at most the GPUs of a stage",
        ARITHMETIC,
        lambda spec, rows: rows.expert_gpus <= rows.tp * rows.cp * rows.dp,
        "ep {ep} x etp {etp} > {tp * cp * dp} GPUs",
        concerns=lambda spec: spec.model.moe is not None,
    ),
    Rule(
        "experts_share_ranks",
        "ep x etp divides the GPUs of a stage",
        ARITHMETIC,
        lambda spec, rows: (
            (rows.expert_gpus > rows.tp * rows.cp * rows.dp)
            | (rows.tp * rows.cp * rows.dp % rows.expert_gpus == 0)
        ),
        "{tp * cp * dp} GPUs mod ep x etp {ep * etp} = {tp * cp * dp % (ep * etp)}",
        concerns=lambda spec: spec.model.moe is not None,
    ),
)
"""Rules on how experts are spread; a plan that breaks one has no price."""

FIELD_RULES = (
    *EXPERT_RULES,
    Rule(
        "zero_stage",
        "ZeRO has the stages 0 to 3",
        ARITHMETIC,
        lambda spec, rows: rows.zero <= 3,
        "zero {zero} > 3",
    ),
    Rule(
        "zero_shares",
        "ZeRO shards over the GPUs of dp_shard x cp; beside replicas dp_shard is not 1",
        ARITHMETIC,
        lambda spec, rows: (
            (rows.zero == 0) | (rows.dp_shard > 1) | (rows.dp_replicate == 1)
        ),
        "zero {zero}, dp_shard {dp_shard}, dp_replicate {dp_replicate}",
    ),
    Rule(
        "shards_need_zero",
        "dp_shard counts the shards of ZeRO; without it copies are dp_replicate",
        ARITHMETIC,
        lambda spec, rows: (rows.zero > 0) | (rows.dp_shard == 1),
        "zero {zero}, dp_shard {dp_shard}",
    ),
    Rule(
        "sequence_parallel_needs_tp",
        "sequence parallelism splits what tensor parallelism leaves whole",
        ARITHMETIC,
        lambda spec, rows: ~rows.sequence_parallel | (rows.tp > 1),
        "sequence_parallel {sequence_parallel}, tp {tp}",
    ),
    Rule(
        "schedule_needs_pipeline",
        "only a pipeline has a schedule to choose",
        ARITHMETIC,
        lambda spec, rows: (rows.schedule == ONE_F_ONE_B) | (rows.pp > 1),
        "schedule {schedule}, pp {pp}",
    ),
    Rule(
        "interleaving_needs_pipeline",
        f"the stages of a pipeline are interleaved, under {SCHEDULES[ONE_F_ONE_B]} or "
        "in a V",
        ARITHMETIC,
        lambda spec, rows: (
            (rows.vpp == 1)
            | ((rows.pp > 1) & ((rows.schedule == ONE_F_ONE_B) | IS_V[rows.schedule]))
        ),
        "vpp {vpp}, pp {pp}, schedule {schedule}",
    ),
    Rule(
        "v_has_two_chunks",
        "in a V each stage has two chunks",
        ARITHMETIC,
        lambda spec, rows: (rows.vpp == 2) | ~IS_V[rows.schedule],
        "vpp {vpp}, schedule {schedule}",
    ),
    Rule(
        "chunks_even",
        "under interleaving vpp divides the layers of the largest stage, and those of "
        "every stage where a framework has no uneven chunks",
        ARITHMETIC,
        _has_chunks,
        "{spec.model.n_layers} layers, {pp * vpp:product} chunks",
    ),
)
"""Rules on fields beside degrees and batch, which every row of the lattice keeps."""


def _experts(spec: Spec) -> int:
    return spec.model.moe.n_experts if spec.model.moe else 1


def expert_width(spec: Spec) -> int:
    """Return the inner width of an expert; 1 without experts."""
    return spec.model.moe.d_ff if spec.model.moe else 1


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
            ARITHMETIC,
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
        ARITHMETIC,
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
            ARITHMETIC,
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
        source=ARITHMETIC,
    )


def unequal(checks: Iterable[tuple[str, str, int, int]]) -> list[BrokenRule]:
    """Return the broken rules among checks (rule, sentence, have, need)."""
    return [
        BrokenRule(rule=rule, sentence=sentence, have=have, need=need)
        for rule, sentence, have, need in checks
        if have != need
    ]


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
    launched = {"selective", "full", *framework.on_host}
    modes = [mode for mode in RECOMPUTE_MODES if mode in launched]
    scopes = {mode: framework.recompute_scope(mode) for mode in modes}
    return [
        SplitRule(RECOMPUTE_SCOPE, f"{mode} recomputation: {it.sentence}", it.source)
        for mode, it in scopes.items()
        if it.code != PER_STAGE
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
        if plan.vpp > most_chunks(layers, schedule_named(plan.schedule).is_v):
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
    leading = spec.model.first_dense_layers
    each = min(most // plan.vpp, leading)
    if plan.vpp > 1 and most_leading(layers, plan.vpp, leading) != each:
        yield BrokenRule(
            rule=CHUNKS_EVEN,
            sentence=f"under interleaving the first chunks of stages hold {each} of "
            f"{leading} leading dense layers each: {layers} in {plan.vpp} chunks a "
            "stage",
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
