"""Plans as arguments of Megatron-LM's `pretrain_gpt.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.exports.files import (
    TEXTS,
    ExportedFile,
    Refusal,
    Setting,
    model_page,
    unsaid,
)
from meshwright.exports.launch import TRIAL_STEPS, Program, launch_files
from meshwright.exports.megatron_model import (
    activation_notes,
    as_arguments,
    model_arguments,
    model_refusals,
)
from meshwright.exports.target import (
    Target,
    recomputed_layers,
    recomputed_text,
    rounds_text,
)
from meshwright.frameworks.base.registry import (
    attention_kernel_of,
    context_exchange_of,
    framework_of,
    fused_of,
    overlap_of,
)
from meshwright.frameworks.base.shared import special_state
from meshwright.imports.launches import megatron_options as options
from meshwright.imports.launches.settings import inverse
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_unplaced_row
from meshwright.spec.plan_fields import group_size
from meshwright.spec.spec import Spec
from meshwright.spec.training import ContextExchange, ExpertDispatch, Overlap, Training

BACKENDS = {"cudnn": "fused", "plain": "unfused"}
"""Words of `--attention-backend` for kernels; `flash` for all others."""

DTYPES = {
    "bf16": "torch.bfloat16",
    "fp8": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
    "tf32": "torch.float32",
}

GROUP = "plan.microbatches: the least that leaves no group below plan.pp"

CONFIG = "megatron/core/transformer/transformer_config.py: __post_init__"


def refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield the fields of a plan that Megatron-LM has no argument for."""
    yield from model_refusals(spec.model)
    yield from _recompute_refusals(plan)
    if spec.training.attention in ("flash1", "triton", "efficient"):
        sentence = f"{spec.training.attention}: Transformer Engine has other kernels"
        check = "transformer_engine/pytorch/attention: FlashAttentionUtils"
        yield Refusal("training.attention", sentence, check)
    yield from state_refusals(spec, plan)


def _recompute_refusals(plan: Plan) -> Iterator[Refusal]:
    if not plan.recomputes_some_layers:
        return
    recomputed, said = recomputed_layers(plan), recomputed_text(plan)
    if plan.recompute == "selective":
        sentence = f"selective on {said}: recompute_num_layers must be None with it"
        yield Refusal("recompute", sentence, CONFIG)
    elif len({*recomputed}) > 1 or recomputed[0] % plan.vpp:
        sentence = f"full on {said}: recompute_num_layers is one number for all stages"
        yield Refusal("recompute", sentence, CONFIG)


def arguments(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the arguments that say a plan and its model."""
    for setting in core_settings(spec, plan):
        yield from as_arguments(setting, spec.model)
    yield from _batch(spec, plan)
    yield from state_arguments(spec, plan)
    yield from model_arguments(spec.model)
    yield from _kernels(spec)


def core_settings(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the settings of Megatron Core that say degrees and recomputation."""
    yield from _degrees(spec, plan)
    yield from _recompute(plan)
    if spec.model.moe is not None:
        yield from _dispatcher(spec.training.expert_dispatch)


def _dispatcher(dispatch: ExpertDispatch) -> Iterator[Setting]:
    why = f"training.expert_dispatch {dispatch}"
    kind = "alltoall" if dispatch == "alltoall" else "flex"
    yield Setting("moe_token_dispatcher_type", kind, why)
    if kind == "flex":
        yield Setting("moe_flex_dispatcher_backend", "deepep", why)


def _degrees(spec: Spec, plan: Plan) -> Iterator[Setting]:
    yield Setting("tensor_model_parallel_size", plan.tp, "plan.tp")
    is_split = plan.sequence_parallel and plan.tp > 1
    yield Setting("sequence_parallel", is_split, "plan.sequence_parallel")
    yield Setting("pipeline_model_parallel_size", plan.pp, "plan.pp")
    counts = plan.chunk_layers(spec.model.first_dense_layers)
    if len({*counts}) > 1:
        why = "plan.stages: layers t of each, embedding E, loss L"
        why += ", m for model.mtp_layers" if spec.model.mtp_layers else ""
        told = layout(counts, spec.model.mtp_layers)
        yield Setting("pipeline_model_parallel_layout", told, why)
    elif plan.vpp > 1:
        yield Setting("virtual_pipeline_model_parallel_size", plan.vpp, "plan.vpp")
    if (size := microbatch_group(plan)) != plan.pp:
        yield Setting("microbatch_group_size_per_vp_stage", size, GROUP)
    if plan.pp > 1:
        why = f"plan.precision {plan.precision}: what stages send"
        yield Setting("pipeline_dtype", DTYPES[plan.precision], why)
    yield Setting("context_parallel_size", plan.cp, "plan.cp")
    if plan.cp > 1:
        word, why = cp_comm_type(spec)
        yield Setting("cp_comm_type", word, why)
    if spec.model.moe is not None:
        yield Setting("expert_model_parallel_size", plan.ep, "plan.ep")
        why = "plan.etp; the tensor size where it is not given"
        yield Setting("expert_tensor_parallel_size", plan.etp, why)


def _recompute(plan: Plan) -> Iterator[Setting]:
    if plan.recompute == "none":
        return
    yield Setting("recompute_granularity", plan.recompute, "plan.recompute")
    if plan.recompute == "selective":
        modules = plan.recompute_modules.split("+")
        yield Setting("recompute_modules", modules, "plan.recompute_modules")
    if not plan.repeats_layers:
        return
    if plan.recomputes_all_layers:
        yield Setting("recompute_method", "uniform", "all layers of plan.stages")
        why = "layers of a segment, which keeps one input"
        yield Setting("recompute_num_layers", plan.recompute_segment, why)
        return
    count = recomputed_layers(plan)[0] // plan.vpp
    yield Setting("recompute_method", "block", "the first layers of each stage")
    why = "plan.stages: recomputed layers of each, of each virtual stage with vpp"
    yield Setting("recompute_num_layers", count, why)


def microbatch_group(plan: Plan) -> int:
    """Return how many micro-batches pass a virtual stage in a row, pp without any.

    Megatron Core takes pp unless told.
    """
    return group_size(plan.microbatches, plan.pp) if plan.vpp > 1 else plan.pp


def layout(counts: Sequence[int], further: int = 0) -> str:
    """Return the layers of each chunk as Megatron Core reads them.

    `further` layers predict one more token each, on the last stage.
    """
    stages = [f"t*{count}" if count > 1 else "t" * count for count in counts]
    return "E" + "|".join(stages) + "m" * further + "L"


def _batch(spec: Spec, plan: Plan) -> Iterator[Setting]:
    training = spec.training
    yield Setting("--micro-batch-size", plan.micro_batch, "plan.micro_batch")
    why = f"training.global_batch: {rounds_text(plan)}"
    yield Setting("--global-batch-size", training.global_batch, why)
    yield Setting("--seq-length", training.seq_len, "training.seq_len")
    most = max(training.seq_len, spec.model.learned_positions)
    why = "training.seq_len, or model.learned_positions where there are more"
    yield Setting("--max-position-embeddings", most, why)


def _kernels(spec: Spec) -> Iterator[Setting]:
    yield Setting("--transformer-impl", "transformer_engine", "its norms are fused")
    yield Setting("--attention-backend", backend(spec), "training.attention")
    if "loss" in fused_of(spec):
        yield Setting("--cross-entropy-loss-fusion", why="training.fused")


def backend(spec: Spec) -> str:
    """Return the word of Megatron Core for the attention of a spec."""
    is_plain = spec.training.stores_scores
    return BACKENDS.get("plain" if is_plain else attention_kernel_of(spec), "flash")


MARGIN = 16
"""Multiprocessors that Transformer Engine's norms leave to collectives beside them
(NVIDIA-NeMo/Megatron-Bridge docs/performance-guide.md)."""


def environment(spec: Spec, plan: Plan) -> list[Setting]:
    """Return the variables that Megatron Core, its kernels and PyTorch read."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    why = "orders kernels and messages of tensor and context parallelism"
    found = [Setting(name, 1, why)]
    if plan.zero >= 2:
        found = [Setting(name, 8, "Megatron-FSDP overlaps only above 1")]
    if plan.dp * plan.cp > 1 and "gradients" in overlap_of(spec):
        why = "norms leave room for messages that overlap"
        for way in ("FWD", "BWD"):
            found.append(Setting(f"NVTE_{way}_LAYERNORM_SM_MARGIN", MARGIN, why))
    if spec.training.cuda_graphs:
        why = "PyTorch's segments grow, which graphs cannot register"
        found.append(Setting("NCCL_GRAPH_REGISTER", 0, why))
    return found


def files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the script that starts a plan, and what it needs."""
    program = Program(
        title=f"{spec.title}: Megatron-LM",
        plan=plan,
        command=['"${PROGRAM:-pretrain_gpt.py}"', '"${DATA[@]}"'],
        arguments=[*arguments(spec, plan)],
        environment=environment(spec, plan),
        needs=TEXTS["megatron_data"].format(vocab=spec.model.vocab, steps=TRIAL_STEPS),
    )
    notes = [
        "`PROGRAM` is the path of Megatron-LM's `pretrain_gpt.py`; the arguments say "
        "all of the model.",
        "Ranks are in Megatron-LM's own order, tp-cp-ep-dp-pp: "
        "`--use-tp-pp-dp-mapping` must not be given.",
        *activation_notes(spec.model),
        *unsaid(spec, "Megatron-LM", SAID),
    ]
    page = model_page(spec, "Megatron-LM", notes)
    return [*launch_files(spec, program), page]


SAID = (
    *(f"overlap.{kind}" for kind in Overlap.model_fields),
    "fused.loss",
    "context_exchange",
)
"""Settings of code that the arguments of Megatron-LM, and Bridge, carry."""

TARGET = Target(
    title="Megatron-LM",
    version="megatron-core 0.19.2",
    framework="megatron",
    refusals=refusals,
    files=files,
)


def hidden_layer_traffic(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the fields of Megatron Core that hide the messages of layers."""
    overlap = overlap_of(spec)
    if "tp" in overlap and plan.tp > 1 and plan.sequence_parallel:
        yield Setting("tp_comm_overlap", True, "training.overlap.tp")
    if "ep" in overlap and plan.ep > 1 and _accepts_hidden_experts(spec, plan):
        yield Setting("overlap_moe_expert_parallel_comm", True, "training.overlap.ep")


def _accepts_hidden_experts(spec: Spec, plan: Plan) -> bool:
    return bool(framework_of(spec).hides_experts(to_unplaced_row(plan))[0])


OPTIMIZERS, STRATEGIES = inverse(options.OPTIMIZERS), inverse(options.SHARDING)
"""The words that `imports` reads, by what they mean."""


def state_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield the fields on state that Megatron-LM has no argument for."""
    optimizer = spec.training.optimizer
    if optimizer not in OPTIMIZERS:
        check = "megatron/training/arguments.py: choices of --optimizer"
        yield Refusal("training.optimizer", f"{optimizer}: no such choice", check)
    is_split = plan.tp > 1 and plan.repeats_layers
    if spec.training.partition_activations and not is_split:
        sentence = "needs full recomputation and tensor parallelism"
        check = "megatron/training/arguments.py: distribute_saved_activations"
        yield Refusal("training.partition_activations", sentence, check)
    if spec.training.lora is not None:
        sentence = (
            "what is written here pretrains all weights; adapters need Megatron "
            "Bridge's `finetune` with `peft.lora.LoRA(target_modules, dim)`"
        )
        check = "megatron/training/arguments.py: no argument freezes weights"
        yield Refusal("training.lora", sentence, check)
    if _keeps_moments_alone(spec.training, plan):
        sentence = "fp32 beside bf16 moments: it keeps remainders then"
        check = "megatron/core/optimizer/optimizer_config.py: store_param_remainders"
        yield Refusal("training.master_weights", sentence, check)


def is_precision_aware(training: Training) -> bool:
    """Return whether Adam keeps less than fp32 moments and fp32 weights."""
    return bool(special_state(training) - {"fp8_weights"})


def _keeps_moments_alone(training: Training, plan: Plan) -> bool:
    """Return whether moments are in bf16, beside fp32 copies of bf16 weights."""
    has_16_bits = training.fp8_weights == "copies" or plan.precision != "fp8"
    is_wide = training.master_weights == "fp32"
    return training.moments == "bf16" and is_wide and has_16_bits


def state_arguments(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the arguments on state: its formats, its shards and where it lives."""
    yield from _precision(spec, plan)
    yield Setting(
        "--optimizer", OPTIMIZERS[spec.training.optimizer], "training.optimizer"
    )
    yield from _sharding(plan)
    yield from _overlap(spec, plan)
    for setting in memory_settings(spec.training, plan):
        field = replace(setting, name=setting.name.rpartition(".")[2])
        yield from as_arguments(field, spec.model)


def memory_settings(training: Training, plan: Plan) -> Iterator[Setting]:
    """Yield the fields of Megatron Core by which state and activations take less.

    Their names begin with the section that Megatron Bridge has them in.
    """
    precision_aware = "optimizer.use_precision_aware_optimizer"
    if is_precision_aware(training):
        why = "training.moments, training.master_weights"
        yield Setting(precision_aware, True, why)
        for name in ("optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"):
            yield Setting(name, training.moments, "training.moments")
    if training.partition_activations:
        why = "training.partition_activations"
        yield Setting("model.distribute_saved_activations", True, why)
    if training.fp8_activation_inputs:
        why = "training.fp8_activation_inputs"
        yield Setting("model.activation_func_fp8_input_store", True, why)
    if layers := training.offload_activations:
        why = "training.offload_activations"
        yield Setting("model.cpu_offloading", True, why)
        yield Setting("model.cpu_offloading_num_layers", layers, why)
    if plan.offload == "optimizer":
        yield Setting("optimizer.optimizer_cpu_offload", True, "plan.offload optimizer")
        share = training.offload_fraction
        why = "all of it" if share == 1 else "training.offload_fraction"
        yield Setting("optimizer.optimizer_offload_fraction", share, why)
        yield Setting(precision_aware, True, "the offload needs it")


def _precision(spec: Spec, plan: Plan) -> Iterator[Setting]:
    if plan.precision == "fp8":
        yield Setting("--bf16", why="plan.precision fp8: what is no matmul")
        yield Setting("--fp8-format", "hybrid", "plan.precision fp8")
        yield Setting("--fp8-recipe", "delayed", "one scale per tensor")
        if spec.training.fp8_weights == "primary":
            yield Setting("--fp8-param-gather", why="training.fp8_weights")
    elif plan.precision in ("bf16", "fp16"):
        yield Setting(f"--{plan.precision}", why="plan.precision")
    if plan.precision in ("fp8", "bf16"):
        if spec.training.gradients == "bf16":
            yield Setting("--grad-reduce-in-bf16", why="training.gradients")
        else:
            name = "--accumulate-allreduce-grads-in-fp32"
            yield Setting(
                name, why="training.gradients; Megatron-LM's default for bf16"
            )
    elif spec.training.gradients == "fp32" and plan.precision == "fp16":
        name = "--accumulate-allreduce-grads-in-fp32"
        yield Setting(name, why="training.gradients")


def _overlap(spec: Spec, plan: Plan) -> Iterator[Setting]:
    """Yield the arguments that hide traffic; hidden gathers need hidden reductions."""
    overlap = overlap_of(spec)
    if "gradients" in overlap and (plan.zero >= 1 or plan.dp_replicate > 1):
        yield Setting("--overlap-grad-reduce", why="training.overlap.gradients")
        if "parameters" in overlap and plan.zero >= 1:
            yield Setting("--overlap-param-gather", why="training.overlap.parameters")
    for setting in hidden_layer_traffic(spec, plan):
        yield from as_arguments(setting, spec.model)
    if "pp" not in overlap and plan.vpp > 1:
        yield Setting("--no-overlap-p2p-communication", why="training.overlap.pp")


def _sharding(plan: Plan) -> Iterator[Setting]:
    if plan.zero >= 1:
        yield Setting("--use-distributed-optimizer", why=f"plan.zero {plan.zero}")
    if plan.zero >= 2:
        yield Setting("--use-megatron-fsdp", why=f"plan.zero {plan.zero}")
        name = "--data-parallel-sharding-strategy"
        yield Setting(name, STRATEGIES[plan.zero], f"plan.zero {plan.zero}")
        yield Setting("--ckpt-format", "fsdp_dtensor", "Megatron-FSDP's checkpoints")
        yield Setting(
            "--init-model-with-meta-device", why="no GPU holds the whole model"
        )
    if plan.zero >= 1 and plan.dp_replicate > 1:
        name = "--num-distributed-optimizer-instances"
        yield Setting(name, plan.dp_replicate, "plan.dp_replicate")
        if plan.zero >= 2:
            yield Setting(
                "--outer-dp-sharding-strategy", "no_shard", "replicas are whole"
            )


_TYPES: dict[ContextExchange, str] = {
    "ring": "p2p",
    "gather": "all_gather",
    "ulysses": "a2a",
}

_REASONS: dict[ContextExchange, str] = {
    "ring": "a ring, as its time is counted",
    "gather": "keys and values are gathered, as their time is counted",
    "ulysses": "tokens for heads, as their time is counted",
}


def cp_comm_type(spec: Spec) -> tuple[str, str]:
    """Return the value of `--cp-comm-type`, and why it is that."""
    exchange = context_exchange_of(spec)
    return _TYPES[exchange], _REASONS[exchange]
