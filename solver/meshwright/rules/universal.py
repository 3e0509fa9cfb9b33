"""The rules that every plan keeps, under any framework."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.frameworks.base.registry import (
    context_exchange_as_usual,
    framework_of,
    has_pattern,
    is_whole,
    partition_of,
    pinned_chunks,
)
from meshwright.frameworks.base.shared import special_state
from meshwright.plans.columns import Bools, Floats
from meshwright.plans.plan import most_chunks, most_leading
from meshwright.plans.rule import Degrees, R, Rule, RuleOf
from meshwright.plans.schedules import IS_V, SPLITS_BACKWARD
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import (
    AXES,
    FULL,
    FULL_CPU,
    KEEPS_ALL,
    NONE,
    PARAMETERS,
    SELECTIVE,
)
from meshwright.spec.serving import FixedSpec
from meshwright.spec.spec import Spec
from meshwright.spec.training import MATRIX_OPTIMIZERS
from meshwright.topology.fabric import Meshes, is_inside_nodes

Shared = RuleOf[FixedSpec, Degrees]

HEADS_DIVISIBLE = Shared(
    "heads_divisible",
    "tp divides the query heads",
    "Shoeybi et al. 2019, Megatron-LM, section 3; vLLM config/model.py: "
    "verify_with_parallel_config",
    lambda spec, rows: spec.model.n_heads % rows.tp == 0,
    "{spec.model.n_heads} heads mod tp {tp} = {spec.model.n_heads % tp}",
    is_inherited=True,
)

LAYERS_COVER_STAGES = Shared(
    "layers_cover_stages",
    "every pipeline stage has a layer, and the first all that lead",
    "stages without layers are not modelled; vLLM distributed/utils.py: get_pp_indices",
    lambda spec, rows: (
        rows.pp - 1 + max(spec.model.leading_layers, 1) <= spec.model.n_layers
    ),
    "pp {pp} for {spec.model.n_layers} layers",
    is_inherited=True,
)


def tp_link(s_per_byte: Callable[[R], Floats]) -> RuleOf[FixedSpec, R]:
    """Return the rule on links of TP; `s_per_byte` returns the cost of TP groups."""

    def is_fast(spec: FixedSpec, rows: R) -> Bools:
        least = spec.limits.tp_min_link_gb_s or 0.0
        # A link exactly at the limit is fast enough, however its reciprocal rounds.
        return np.asarray(s_per_byte(rows) * least * 1e9 <= 1 + 1e-9)

    return RuleOf(
        "tp_link_bandwidth",
        "every tensor-parallel GPU has limits.tp_min_link_gb_s to itself",
        "the spec",
        is_fast,
        "tp {tp}, limit {spec.limits.tp_min_link_gb_s:g} GB/s",
    )


def tp_inside_nodes(spec: Spec, meshes: Meshes) -> Rule:
    """Return the rule that no mesh splits a TP group over more nodes than it must."""
    sizes, inside = spec.cluster.fan_outs, spec.tp_levels
    groups = meshes[:, AXES.index("tp")]
    return Rule(
        "tensor_parallel_inside_nodes",
        "as much of a tensor-parallel group as can be lies on one node",
        "all count tensor-parallel ranks first: Megatron-LM parallel_state.py "
        "(tp-cp-ep-dp-pp), torchtitan ParallelDims, DeepSpeed "
        "PipeModelDataParallelTopology",
        lambda _spec, rows: is_inside_nodes(groups[rows.mesh], sizes, inside),
        "tp {tp}",
    )


def _shared_width(spec: Spec) -> int:
    """Return the inner width of the shared experts; 0 without any."""
    return spec.model.moe.shared_d_ff if spec.model.moe else 0


SPREAD_BELOW = 4
"""Micro-batches over stages, below which leading layers are spread over stages."""


def _holds_chunks(spec: Spec, rows: Skeletons) -> Bools:
    """Return where no chunk is empty, and leading layers fill first chunks alone."""
    leading, pinned = spec.model.leading_layers, pinned_chunks(spec)
    if pinned is not None:
        is_v = IS_V[rows.schedule]
        most = np.where(is_v, most_chunks(pinned, is_v=True), most_chunks(pinned))
        every = np.unique(rows.vpp).tolist()
        takes = [v for v in every if most_leading(pinned, v, leading) or not leading]
        return np.asarray((rows.vpp <= most) & np.isin(rows.vpp, takes))
    layers, chunks = spec.model.n_layers, rows.pp * rows.vpp
    room = rows.first_chunk(layers) * rows.pp
    return np.asarray((layers >= chunks) & (room >= leading))


DEGREE_RULES: tuple[Rule, ...] = (
    HEADS_DIVISIBLE,
    Rule(
        "mlp_divisible",
        "tp divides the inner width of the MLP",
        "Shoeybi et al. 2019, Megatron-LM, section 3: each GPU has as many columns",
        lambda spec, rows: spec.model.d_ff % rows.tp == 0,
        "d_ff {spec.model.d_ff} mod tp {tp} = {spec.model.d_ff % tp}",
        is_inherited=True,
    ),
    Rule(
        "shared_experts_divisible",
        "tp divides the inner width of the shared experts",
        "Shoeybi et al. 2019, section 3: they are split as an MLP is",
        lambda spec, rows: _shared_width(spec) % rows.tp == 0,
        "shared_d_ff {spec.model.moe.shared_d_ff} mod tp {tp} = "
        "{spec.model.moe.shared_d_ff % tp}",
        is_inherited=True,
        concerns=lambda spec: _shared_width(spec) > 0,
    ),
    LAYERS_COVER_STAGES,
    Rule(
        "batch_divisible",
        "dp divides the global batch",
        "each data-parallel rank has as many sequences",
        lambda spec, rows: spec.training.global_batch % rows.dp == 0,
        "{spec.training.global_batch} sequences mod dp {dp} = "
        "{spec.training.global_batch % dp}",
        is_inherited=True,
    ),
    Rule(
        "context_divisible",
        "context parallelism needs fused attention, and cp divides the sequence",
        "the sequence is split evenly; scores are never whole",
        lambda spec, rows: (
            (rows.cp == 1)
            | (
                (spec.training.seq_len % rows.cp == 0)
                & np.bool_(not spec.training.stores_scores)
            )
        ),
        "{spec.training.attention} attention, seq_len {spec.training.seq_len} mod "
        "(2 x cp {cp}) = {spec.training.seq_len % (2 * cp)}",
        is_inherited=True,
    ),
    Rule(
        "context_exchange_supported",
        "context parallelism communicates as the framework can, and all-to-alls swap "
        "tokens for whole heads",
        "Transformer Engine context_parallel.py: attn_forward_func_with_cp",
        lambda spec, rows: _exchanges_context(spec, rows),
        "context_exchange {spec.training.context_exchange}, {spec.model.n_kv_heads} KV "
        "heads, tp {tp}, cp {cp}",
        concerns=lambda spec: (
            spec.training.context_exchange
            not in (None, context_exchange_as_usual(spec))
        ),
    ),
)


def _exchanges_context(spec: Spec, rows: Skeletons) -> Bools:
    exchange, model = spec.training.context_exchange, spec.model
    if exchange in (None, context_exchange_as_usual(spec)):
        return np.full(rows.cp.shape, True)
    is_known = exchange in framework_of(spec).context_exchanges
    splits = (model.n_heads % (rows.tp * rows.cp) == 0) & (
        model.n_kv_heads % (rows.tp * rows.cp) == 0
    )
    return np.asarray((rows.cp == 1) | (is_known & (splits | (exchange != "ulysses"))))


def _has_state(spec: Spec) -> bool:
    """Return whether the framework keeps state as `training` says."""
    return special_state(spec.training) <= framework_of(spec).state_options


def _has_lora(spec: Spec) -> bool:
    """Return whether the framework freezes weights as `training` says."""
    lora, framework = spec.training.lora, framework_of(spec)
    return lora is None or (
        lora.weights in framework.frozen_weights
        and lora.ends in ("frozen", *framework.trained_ends)
    )


def _in_all_plans(holds: Callable[[Spec], bool]) -> Callable[[Spec, Skeletons], Bools]:
    """Return the condition of a rule that all plans of a spec keep, or none."""
    return lambda spec, rows: np.full(rows.tp.shape, holds(spec))


PLAN_RULES: tuple[Rule, ...] = (
    Rule(
        "activations_partitioned",
        "the framework splits checkpoints over tensor-parallel GPUs, which sequence "
        "parallelism has split already",
        "megatron-core 0.19.2 transformer/transformer_config.py: "
        "distribute_saved_activations; deepspeed 0.19.8 "
        "runtime/activation_checkpointing/checkpointing.py",
        lambda spec, rows: (
            framework_of(spec).partitions_activations & ~rows.sequence_parallel
        ),
        "framework {spec.framework}, sequence parallelism {sequence_parallel}",
        concerns=lambda spec: spec.training.partition_activations,
    ),
    Rule(
        "muon_supported",
        "the framework has Muon, whose matrices are whole and on the GPU: ZeRO 0 or 1",
        "megatron-core 0.19.2 optimizer/layer_wise_optimizer.py; deepspeed 0.19.8 "
        "runtime/zero/muon",
        lambda spec, rows: (
            (spec.training.optimizer in framework_of(spec).matrix_optimizers)
            & (rows.zero <= 1)
            & (rows.offload == KEEPS_ALL)
        ),
        "framework {spec.framework}, zero {zero}, offload {offload}",
        concerns=lambda spec: spec.training.optimizer in MATRIX_OPTIMIZERS,
    ),
    Rule(
        "lora_supported",
        "the framework has LoRA beside weights in that format, and trains ends so",
        "Megatron Bridge peft/lora.py: weights in 16 bits; PEFT with bitsandbytes "
        "beside FSDP and DeepSpeed: quantised ones, too",
        _in_all_plans(_has_lora),
        "framework {spec.framework}, weights {spec.training.lora.weights}, ends "
        "{spec.training.lora.ends}",
        concerns=lambda spec: not _has_lora(spec),
    ),
    Rule(
        "mtp_supported",
        "the framework trains layers that predict further tokens",
        "megatron-core 0.19.2 transformer/multi_token_prediction.py; torchtitan, "
        "Transformers and the others leave these layers out",
        _in_all_plans(lambda spec: framework_of(spec).has_mtp),
        "framework {spec.framework}, mtp_layers {spec.model.mtp_layers}",
        concerns=lambda spec: (
            spec.model.mtp_layers > 0 and not framework_of(spec).has_mtp
        ),
    ),
    Rule(
        "reference_supported",
        "the framework runs a frozen reference beside the model, without a pipeline",
        "trl f2cd577 trainer/dpo_trainer.py: prepare_deepspeed, prepare_fsdp; those of "
        "Megatron-LM swap the reference in, and run it over all micro-batches first",
        lambda spec, rows: np.bool_(framework_of(spec).has_reference) & (rows.pp == 1),
        "framework {spec.framework}, pp {pp}",
        concerns=lambda spec: spec.training.has_reference,
    ),
    Rule(
        "pairs_whole",
        "beside a reference a micro-batch has both answers of its pairs",
        "trl f2cd577 trainer/dpo_trainer.py: DataCollatorForPreference",
        lambda spec, rows: rows.micro_batch % 2 == 0,
        "micro_batch {micro_batch} mod 2 = {micro_batch % 2}",
        concerns=lambda spec: spec.training.has_reference,
    ),
    Rule(
        "state_supported",
        "moments and master weights are in fp32, and fp8 weights are copies",
        "Megatron-LM optimizer_config.py: use_precision_aware_optimizer; torchtitan's "
        "training.dtype and models in bf16 under FSDP; the others have no such option",
        _in_all_plans(_has_state),
        "moments {spec.training.moments}, master_weights "
        "{spec.training.master_weights}, fp8_weights {spec.training.fp8_weights}",
        concerns=lambda spec: not _has_state(spec),
    ),
    Rule(
        "fp8_inputs_supported",
        "the framework can keep the inputs of activations in 8 bits",
        "megatron-core 0.19.2 transformer/transformer_config.py: "
        "activation_func_fp8_input_store",
        _in_all_plans(lambda spec: framework_of(spec).stores_fp8_inputs),
        "framework {spec.framework}",
        concerns=lambda spec: spec.training.fp8_activation_inputs,
    ),
    Rule(
        "gradient_sync_supported",
        "the framework may reduce gradients once a step under ZeRO-2 and 3",
        "PyTorch fully_shard: set_requires_gradient_sync; accelerate 1.15.0 "
        "accelerator.py: no_sync; the others reduce every micro-batch",
        _in_all_plans(lambda spec: framework_of(spec).has_no_sync),
        "gradient_sync {spec.training.gradient_sync}",
        concerns=lambda spec: spec.training.gradient_sync == "last",
    ),
    Rule(
        "expert_dispatch_supported",
        "every copy of a token is sent to its expert on its own",
        "Megatron-LM token_dispatcher.py: MoEFlexTokenDispatcher; plans for other "
        "frameworks are written with their usual all-to-all",
        _in_all_plans(lambda spec: framework_of(spec).has_deepep),
        "expert_dispatch {spec.training.expert_dispatch}",
        concerns=lambda spec: (
            spec.training.expert_dispatch == "deepep"
            and not framework_of(spec).has_deepep
        ),
    ),
    Rule(
        "sequence_divisible",
        "under sequence parallelism tp x cp divides the sequence",
        "Korthikanti et al. 2022, section 4.2.2: each GPU has as many tokens",
        lambda spec, rows: (
            ~rows.sequence_parallel | (spec.training.seq_len % (rows.tp * rows.cp) == 0)
        ),
        "seq_len {spec.training.seq_len} mod (tp {tp} x cp {cp}) = "
        "{spec.training.seq_len % (tp * cp)}",
    ),
    Rule(
        "zero_bubble_recompute",
        "a zero-bubble schedule recomputes nothing",
        "Qi et al. 2023: what a layer saves waits for its gradients of weights",
        lambda spec, rows: ~SPLITS_BACKWARD[rows.schedule] | (rows.recompute == NONE),
        "schedule {schedule}, recompute {recompute}",
    ),
    Rule(
        "v_supported",
        "the last stage has the end of the model: stages make no V",
        "Qi et al. 2023, section 6; few frameworks launch it",
        lambda spec, rows: ~IS_V[rows.schedule] | np.bool_(framework_of(spec).makes_v),
        "schedule {schedule}",
        concerns=lambda spec: not framework_of(spec).makes_v,
    ),
    Rule(
        "recompute_modules",
        "modules are named beside selective recomputation alone",
        "Megatron-LM transformer_config.py: recompute_modules",
        lambda spec, rows: (
            (rows.recompute == SELECTIVE) | (rows.recompute_modules == 0)
        ),
        "recompute {recompute}, modules {recompute_modules}",
    ),
    Rule(
        "expert_parts_supported",
        "each GPU has whole experts",
        "Megatron-LM transformer_config.py: expert_tensor_parallel_size",
        lambda spec, rows: (
            (rows.etp == 1) | np.bool_(framework_of(spec).splits_experts)
        ),
        "etp {etp}",
        concerns=lambda spec: not framework_of(spec).splits_experts,
    ),
    Rule(
        "recompute_segments_supported",
        "full recomputation keeps the input of every layer",
        "PyTorch utils/checkpoint.py: checkpoint wraps a layer",
        lambda spec, rows: (
            (rows.recompute_segment == 1) | np.bool_(framework_of(spec).has_segments)
        ),
        "recompute_segment {recompute_segment}",
        concerns=lambda spec: not framework_of(spec).has_segments,
    ),
    Rule(
        "recompute_segment",
        "segments of several layers stand beside full recomputation, and are no "
        "longer than a chunk",
        "Megatron-LM recompute.py: checkpointed_forward, method uniform",
        lambda spec, rows: (
            (rows.recompute_segment == 1)
            | (
                (rows.recompute == FULL)
                & (rows.pp * rows.vpp * rows.recompute_segment <= spec.model.n_layers)
            )
        ),
        "recompute {recompute}, {spec.model.n_layers} layers < pp {pp} x vpp {vpp} x "
        "recompute_segment {recompute_segment}",
    ),
    Rule(
        "recompute_segment_weights",
        "segments of several layers have their weights on the GPU: no ZeRO-3, no "
        "offloaded parameters",
        "a segment would gather or fetch its weights once more, which is not priced",
        lambda spec, rows: (
            (rows.recompute_segment == 1)
            | ((rows.zero < 3) & (rows.offload != PARAMETERS))
        ),
        "recompute_segment {recompute_segment}, zero {zero}, offload {offload}",
    ),
    Rule(
        "layers_cover_chunks",
        "under interleaving every chunk has a layer, and the first chunks of stages "
        "all that lead",
        "Narayanan et al. 2021, section 2.2.2",
        lambda spec, rows: (rows.vpp == 1) | _holds_chunks(spec, rows),
        "{spec.model.n_layers} layers / (pp {pp} x vpp {vpp}) = "
        "{spec.model.n_layers // (pp * vpp)}, {spec.model.leading_layers} lead",
    ),
    Rule(
        "leading_tried",
        "leading layers are spread over chunks of several stages only below "
        f"{SPREAD_BELOW} x pp micro-batches: more leave little bubble to save; "
        "limits.untried, or a pin of vpp or layers, gives this rule up",
        "choice of Meshwright, for the time that a search takes",
        lambda spec, rows: (
            (rows.vpp == 1)
            | (spec.model.n_layers // (rows.pp * rows.vpp) >= spec.model.leading_layers)
            | (rows.microbatches < SPREAD_BELOW * rows.pp)
        ),
        "{spec.model.leading_layers} lead, pp {pp}, vpp {vpp}, {microbatches} "
        "micro-batches",
        concerns=lambda spec: (
            spec.model.first_dense_layers > 0
            and not spec.limits.untried
            and spec.pins.vpp is None
            and spec.pins.layers is None
        ),
    ),
)


def may_keep_inputs_on_host(spec: Spec) -> bool:
    """Return whether inputs of recomputed layers may wait on the hosts of a cluster."""
    has_host = spec.cluster.topology.host is not None
    splits = spec.training.partition_activations
    return "full-cpu" in framework_of(spec).on_host and has_host and not splits


HOST_PLAN_RULES: tuple[Rule, ...] = (
    Rule(
        "activations_offloaded",
        "the framework moves the inputs of recomputed layers to cluster.topology.host, "
        "whole ones, without a pipeline",
        "deepspeed 0.19.8 runtime/activation_checkpointing/checkpointing.py: "
        "_get_cpu_offload_engine; accelerate 1.15.0 utils/fsdp_utils.py: "
        "fsdp2_apply_ac; beside a pipeline it is not priced",
        lambda spec, rows: (
            (rows.recompute != FULL_CPU)
            | (np.bool_(may_keep_inputs_on_host(spec)) & (rows.pp == 1))
        ),
        "framework {spec.framework}, pp {pp}, recompute {recompute}",
    ),
    Rule(
        "activations_offloaded",
        "the framework offloads activations: without a pipeline, nothing recomputed",
        "megatron-core 0.19.2 transformer/transformer_config.py: cpu_offloading; trl "
        "1.16.0 models/activation_offloading.py, where layers are not recomputed",
        lambda spec, rows: (
            ("offload_activations" in framework_of(spec).on_host)
            & (rows.pp == 1)
            & (rows.recompute == NONE)
        ),
        "framework {spec.framework}, pp {pp}, recompute {recompute}",
        concerns=lambda spec: spec.training.offload_activations > 0,
        fails_with="Currently there is no support for Pipeline parallelism with CPU "
        "offloading",
    ),
    Rule(
        "offload_supported",
        "offload needs the machine around the GPUs: cluster.topology.host",
        "the spec",
        lambda spec, rows: (
            (rows.offload == KEEPS_ALL)
            | np.bool_(spec.cluster.topology.host is not None)
        ),
        "offload {offload}",
    ),
    Rule(
        "offload_fraction",
        "where the GPU updates a part of the parameters, they stay on it",
        "megatron-core 0.19.2 optimizer/cpu_offloading/hybrid_optimizer.py; Tang et "
        "al. 2023, ZeRO-Offload++: beside offloaded parameters a part is not priced",
        lambda spec, rows: rows.offload != PARAMETERS,
        "offload {offload}, fraction {spec.training.offload_fraction}",
        concerns=lambda spec: spec.training.offload_fraction < 1,
    ),
)


def _state_space_counts(spec: Spec) -> tuple[int, ...]:
    mixer = spec.model.state_space
    return () if mixer is None else (mixer.n_heads, mixer.groups)


def _has_state_space(spec: Spec) -> bool:
    return spec.model.state_space is not None


def _widths_divide(spec: Spec, rows: Skeletons) -> Bools:
    """Return where tp divides the inner widths that kinds of layers have."""
    widths = [kind.d_ff for kind in spec.model.kinds.values() if kind.d_ff]
    divides = np.ones(len(rows.tp), dtype=bool)
    for width in widths:
        divides = divides & (width % rows.tp == 0)
    return divides


def _holds_patterns(spec: Spec, rows: Skeletons) -> Bools:
    """Return where every stage, and every chunk, can hold whole patterns."""
    order, chunks = spec.model.order, rows.pp * rows.vpp
    leads = len(order.leading) > 0
    interleaved = (order.repeats % chunks == 0) & ~np.bool_(leads)
    result = (rows.vpp == 1) | interleaved
    partition = partition_of(spec)
    for stages in np.unique(rows.pp[result]).tolist():
        if partition is not None and stages > 1:
            layers = list(partition.layers(spec.model, stages))
            result = result & ((rows.pp != stages) | is_whole(spec.model, layers))
    return np.asarray(result)


def _heads_divide(spec: Spec, rows: Skeletons) -> Bools:
    divides = np.ones(len(rows.tp), dtype=bool)
    for count in _state_space_counts(spec):
        divides = divides & (count % rows.tp == 0)
    return divides


KIND_DEGREE_RULES: tuple[Rule, ...] = (
    Rule(
        "state_space_divisible",
        "tp divides the heads and the groups of state-space layers",
        "Megatron-LM core/ssm/mamba_mixer.py: heads and groups are split over tp",
        _heads_divide,
        "{spec.model.state_space.n_heads} heads, {spec.model.state_space.groups} "
        "groups, tp {tp}",
        is_inherited=True,
        concerns=_has_state_space,
    ),
    Rule(
        "kinds_divisible",
        "tp divides the inner widths of all kinds of layers",
        "Shoeybi et al. 2019, section 3: each GPU has as many columns",
        _widths_divide,
        "tp {tp}",
        is_inherited=True,
        concerns=lambda spec: any(kind.d_ff for kind in spec.model.kinds.values()),
    ),
    Rule(
        "state_space_context",
        "context parallelism of state-space layers is not modelled",
        "Megatron Core exchanges heads of them (ssm/mamba_context_parallel.py)",
        lambda spec, rows: rows.cp == 1,
        "cp {cp}",
        is_inherited=True,
        concerns=_has_state_space,
    ),
)

KIND_PLAN_RULES: tuple[Rule, ...] = (
    Rule(
        "whole_patterns",
        "every stage, and under interleaving every chunk, holds the pattern of kinds "
        "of layers a whole number of times",
        "prices of layers are means over the pattern",
        _holds_patterns,
        "{spec.model.order.repeats} patterns of {spec.model.order.period} layers, pp "
        "{pp}, vpp {vpp}",
        concerns=lambda spec: has_pattern(spec.model),
    ),
)
