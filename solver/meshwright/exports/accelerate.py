"""Plans as a configuration file of Hugging Face Accelerate, for FSDP2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshwright.exports.files import (
    ExportedFile,
    Refusal,
    Setting,
    commented,
    lora_notes,
    model_page,
    unsaid,
)
from meshwright.exports.launch import (
    COMMAND,
    YOURS,
    Launcher,
    Program,
    Seats,
    accelerate_program,
    checkpointing,
    launch_files,
)
from meshwright.exports.target import Target, all_or_no_layers
from meshwright.frameworks.base.registry import context_exchange_of
from meshwright.frameworks.base.shared import is_pure
from meshwright.imports.launches.settings import OPTIONS, inverse
from meshwright.plans.plan import Plan
from meshwright.plans.ranks import rank_map
from meshwright.spec.spec import Spec

CONFIG = "accelerate.yaml"

LAUNCHER = Launcher(
    words=f"accelerate launch --config_file {CONFIG}",
    alone="",
    counts=None,
    rank="--machine_rank",
    address="--main_process_ip",
    port="--main_process_port",
)

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "no", "tf32": "no"}

_IMPLEMENTATIONS = {
    "plain": "eager",
    "cudnn": "sdpa",
    "efficient": "sdpa",
    "flash3": "flash_attention_3",
    "flash4": "flash_attention_4",
}
"""Words of `transformers` for kernels of attention other than FlashAttention-2."""

EXCHANGE = OPTIONS["accelerate"]["exchange"]["training.context_exchange"]
"""How the ranks of a sequence exchange keys and values: its name, and its words."""

STRATEGIES = inverse(EXCHANGE["words"])


def implementation(spec: Spec, plan: Plan) -> str:
    """Return the attention of `transformers` that a plan runs with.

    PyTorch's context parallelism splits its own attention alone.
    """
    return "sdpa" if plan.cp > 1 else kernel(spec)


def kernel(spec: Spec) -> str:
    """Return the attention of a spec, as `transformers` names it."""
    return _IMPLEMENTATIONS.get(spec.training.attention, "flash_attention_2")


STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"


def refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield the fields of a plan that Accelerate has no setting for."""
    check = "accelerate/utils/fsdp_utils.py: fsdp2_apply_ac"
    yield from all_or_no_layers(plan, check)
    if not Seats(rank_map(spec.cluster, plan)).is_in_order:
        check = "accelerate/commands/launch.py: multi_gpu_launcher"
        yield Refusal("mesh", "does not fill equal hosts one after the other", check)


def left_activations(spec: Spec, *, has_trl: bool = False) -> Iterator[Refusal]:
    """Yield why activations of some layers cannot wait in host memory, if they should.

    TRL's hooks move what all layers save, and those of no other program are written.
    """
    left, layers = spec.training.offload_activations, spec.model.n_layers
    if left and not (has_trl and left == layers - 1):
        told = f"{left}: {'all layers leave' if has_trl else 'TRL alone has it'}"
        sentence = f"{told}; accepted: 0, or {layers - 1} and --to trl"
        check = "trl/models/activation_offloading.py: OffloadActivations"
        yield Refusal("training.offload_activations", sentence, check)


def _refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    yield from refusals(spec, plan)
    yield from left_activations(spec)


def files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the configuration of a plan, the script that starts it, and its model."""
    written = accelerate_program(spec, plan, implementation(spec, plan))
    why = "plan.microbatches; Accelerator() reads it"
    program = Program(
        title=f"{spec.title}: Accelerate",
        plan=plan,
        command=[COMMAND if written else YOURS],
        environment=[Setting(STEPS, plan.microbatches, why)],
        launcher=LAUNCHER,
    )
    config = ExportedFile(name=CONFIG, text=config_text(spec, plan))
    page = model_page(spec, "Accelerate", _notes(spec, plan))
    programs = [written] if written else []
    return [config, *programs, *launch_files(spec, program), page]


def config_text(spec: Spec, plan: Plan) -> str:
    """Return the configuration, a line with its comment per number."""
    text = "".join(commented(_yaml(_job(spec, plan)), indent=""))
    if plan.zero >= 2:
        text += "fsdp_config:\n" + "".join(commented(_yaml(_sharding(plan))))
        degrees = commented(_yaml(_degrees(spec, plan)))
        text += "parallelism_config:\n" + "".join(degrees)
    return text


def _yaml(settings: Iterable[Setting]) -> Iterator[tuple[str, str]]:
    for setting in settings:
        yield f"{setting.name}: {setting.text}", setting.why


def _job(spec: Spec, plan: Plan) -> Iterator[Setting]:
    seats = Seats(rank_map(spec.cluster, plan))
    yield Setting("compute_environment", "LOCAL_MACHINE", "no cloud service")
    kind = "FSDP" if plan.zero >= 2 else "MULTI_GPU"
    kind = "'NO'" if plan.world_size == 1 and plan.zero < 2 else kind
    yield Setting("distributed_type", kind, f"plan.zero {plan.zero}")
    precision = "no" if is_pure(spec.training) else PRECISIONS[plan.precision]
    text = f"'{precision}'" if precision == "no" else precision
    yield Setting("mixed_precision", text, f"plan.precision {plan.precision}")
    yield Setting("num_machines", len(seats.hosts), "hosts of the cluster")
    yield Setting("num_processes", plan.world_size, "GPUs of the plan, all together")
    yield Setting("machine_rank", 0, "launch.sh gives each host its own")
    yield Setting("rdzv_backend", "static", "hosts keep their order")
    yield Setting("same_network", True, "hosts reach each other")
    yield Setting("main_training_function", "main", "Accelerate's default")
    yield Setting("use_cpu", False, "GPUs")


def _sharding(plan: Plan) -> Iterator[Setting]:
    yield Setting("fsdp_version", 2, "fully_shard")
    why = f"plan.zero {plan.zero}: 3 gathers weights again, 2 keeps them"
    yield Setting("fsdp_reshard_after_forward", plan.zero == 3, why)
    wrap = "TRANSFORMER_BASED_WRAP"
    yield Setting("fsdp_auto_wrap_policy", wrap, "a group per layer, as counted")
    has_all = plan.repeats_layers
    why = f"plan.recompute {plan.recompute}"
    yield Setting("fsdp_activation_checkpointing", has_all, why)
    if plan.recompute == "full-cpu":
        yield Setting("fsdp_activation_checkpointing_offload", True, why)
    yield Setting("fsdp_offload_params", plan.offload == "parameters", "plan.offload")
    yield Setting("fsdp_cpu_ram_efficient_loading", True, "one rank reads the weights")
    yield Setting("fsdp_state_dict_type", "SHARDED_STATE_DICT", "FSDP2's checkpoints")


def _degrees(spec: Spec, plan: Plan) -> Iterator[Setting]:
    name = "parallelism_config_{}_size"
    yield Setting(name.format("dp_replicate"), plan.dp_replicate, "plan.dp_replicate")
    yield Setting(name.format("dp_shard"), plan.dp_shard, "plan.dp_shard")
    yield Setting(name.format("tp"), plan.tp, "plan.tp")
    yield Setting(name.format("cp"), plan.cp, "plan.cp")
    if plan.cp > 1:
        strategy = STRATEGIES[context_exchange_of(spec)]
        why = "training.context_exchange, else the framework's"
        yield Setting(EXCHANGE["word"].rpartition(".")[2], strategy, why)


def _syncs_each(spec: Spec) -> bool:
    return spec.training.gradient_sync == "each"


def _notes(spec: Spec, plan: Plan) -> Iterator[str]:
    yield (
        "`PROGRAM`, by default `train.py` where it is written, makes an "
        f"`Accelerator()`, whose DataLoader has batches of {plan.micro_batch} "
        f"sequences of {spec.training.seq_len} tokens per GPU; the optimizer is "
        f"{spec.training.optimizer}."
    )
    if is_pure(spec.training):
        yield (
            "Weights are trained in bf16: load the model with `torch_dtype="
            "torch.bfloat16`, and keep no master copy in the optimizer."
        )
    yield from lora_notes(spec)
    yield from unsaid(spec, "Accelerate", ("context_exchange",))
    if plan.microbatches > 1 and plan.zero >= 2 and _syncs_each(spec):
        yield (
            f"A step is {plan.microbatches} micro-batches. `GradientAccumulationPlugin("
            f"num_steps={plan.microbatches}, sync_each_batch=True)`: without it "
            "gradients stay whole on every GPU until the last (`no_sync`)."
        )
    if plan.repeats_layers and plan.zero < 2:
        yield (
            f"Every layer is recomputed: `{checkpointing(plan)}` before `prepare`; "
            "Accelerate's own setting is FSDP's."
        )
    if plan.zero >= 2:
        yield (
            "The model names its layer's class in `_no_split_modules`, as those of "
            "`transformers` do; otherwise give `fsdp_transformer_layer_cls_to_wrap`."
        )
    yield (
        f"Attention is {spec.training.attention} (`attn_implementation="
        f"'{implementation(spec, plan)}'`)."
    )


TARGET = Target(
    title="Accelerate",
    version="accelerate 1.15.0",
    framework="fsdp",
    refusals=_refusals,
    files=files,
)
