"""Plans as a configuration module of torchtitan, with its model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.cost.state import loss_chunks
from meshwright.escape import printable
from meshwright.exports.files import (
    TABLES,
    TEXTS,
    ExportedFile,
    Refusal,
    Setting,
    commented,
    is_like_llama,
    layer_refusals,
    model_page,
    unsaid,
)
from meshwright.exports.launch import Program, launch_files
from meshwright.exports.target import Target, recomputed_text, rounds_text
from meshwright.frameworks.base.registry import overlap_of
from meshwright.frameworks.base.shared import is_pure
from meshwright.imports.launches.settings import OPTIONS, inverse
from meshwright.plans.plan import Plan
from meshwright.spec.model import Model
from meshwright.spec.model_parts import RopeScaling
from meshwright.spec.spec import Spec

MODULE = "meshwright_plan"

SCHEDULES = inverse(OPTIONS["torchtitan"]["schedules"])
"""Of each schedule the first name that is read back as it."""

INTERLEAVED = "Interleaved1F1B"

POLICIES = {
    "none": "None",
    "selective": "SelectiveAC.Config()",
    "full": "FullAC.Config()",
}

_COMPILE = "from torchtitan.config import CompileConfig"


def files(spec: Spec, plan: Plan) -> list[ExportedFile]:
    """Return the configuration of a plan, the script that starts it, and its model."""
    program = Program(
        title=f"{spec.title}: torchtitan",
        plan=plan,
        command=["-m torchtitan.train"],
        arguments=[
            Setting("--module", MODULE, f"{MODULE}.py beside this script"),
            Setting("--config", "plan", "its function"),
        ],
    )
    path = 'export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"\n'
    page = model_page(spec, "torchtitan", _notes(spec))
    config = ExportedFile(name=f"{MODULE}.py", text=config_text(spec, plan))
    return [config, *launch_files(spec, program, [path]), page]


def config_text(spec: Spec, plan: Plan) -> str:
    """Return the configuration module, a line with its comment per number."""
    compiled = [_COMPILE] * spec.training.compile
    names = "\n".join(
        sorted({*TABLES["torchtitan_imports"], *compiled, *imports(spec, plan)})
    )
    head = TEXTS["torchtitan_head"].format(
        module=MODULE, title=printable(spec.title), plan=plan, imports=names
    )
    lines = [*model_lines(spec, plan), *_trainer_lines(spec, plan)]
    return head + "".join(commented(lines, indent="    "))


def _trainer_lines(spec: Spec, plan: Plan) -> Iterator[Line]:
    yield "return Trainer.Config(", ""
    yield "    model_spec=model_spec,", ""
    yield "    loss=ChunkedLossWrapper.Config(", ""
    chunks = loss_chunks(spec)
    yield f"        num_chunks={chunks},", "training.loss_chunks, of the sequence"
    yield "        loss_fn=CrossEntropyLoss.Config(", ""
    yield "            global_vocab_size=decoder_vocab_size(model_spec)", ""
    yield "        )", ""
    yield "    ),", ""
    yield "    optimizer=default_adamw(lr=3e-4),", "the rate is yours to change"
    yield "    lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),", "yours"
    yield '    hf_assets_path="./assets/hf",', "the tokenizer: yours to change"
    yield '    dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),', "yours"
    yield "    training=TrainingConfig(", ""
    yield from (_argument(setting) for setting in _training(spec, plan))
    yield "    ),", ""
    yield "    parallelism=ParallelismConfig(", ""
    yield from (_argument(setting) for setting in _parallelism(plan))
    yield from _stage_lines(spec, plan)
    yield "    ),", ""
    policy = POLICIES[plan.recompute]
    yield f"    activation_checkpoint={policy},", f"plan.recompute {plan.recompute}"
    yield from _compile_lines(spec)
    yield ")", ""


def _compile_lines(spec: Spec) -> Iterator[Line]:
    if not spec.training.compile:
        return
    yield "    compile=CompileConfig(", ""
    yield _argument(Setting("enable", True, "training.compile"))
    if "tp" in overlap_of(spec):
        why = "training.overlap.tp"
        yield _argument(Setting("enable_async_tensor_parallel", True, why))
    yield "    ),", ""


def _argument(setting: Setting) -> Line:
    return f"        {setting.name}={setting.value!r},", setting.why


def _training(spec: Spec, plan: Plan) -> Iterator[Setting]:
    training = spec.training
    if plan.pp > 1:
        local = plan.micro_batch * plan.microbatches
        why = "plan.micro_batch x plan.microbatches: the pipeline splits it"
    else:
        local, why = plan.micro_batch, "plan.micro_batch"
    yield Setting("local_batch_size", local, why)
    why = f"training.global_batch: {rounds_text(plan)}"
    yield Setting("global_batch_size", training.global_batch, why)
    yield Setting("seq_len", training.seq_len, "training.seq_len")
    is_offloaded = plan.offload == "parameters"
    yield Setting("enable_cpu_offload", is_offloaded, f"plan.offload {plan.offload}")
    kind = "float32" if plan.precision == "fp32" else "bfloat16"
    yield Setting("mixed_precision_param", kind, f"plan.precision {plan.precision}")
    if is_pure(training):
        yield Setting("dtype", "bfloat16", "training.master_weights none")
    yield Setting("mixed_precision_reduce", "float32", "training.gradients")
    why = "neither pipelines nor expert dispatch can be captured"
    if plan.pp > 1 or plan.ep > 1:
        yield Setting("disable_cuda_graphs", True, why)
    elif training.cuda_graphs is False:
        yield Setting("disable_cuda_graphs", True, "training.cuda_graphs")


def _parallelism(plan: Plan) -> Iterator[Setting]:
    yield Setting(
        "data_parallel_replicate_degree", plan.dp_replicate, "plan.dp_replicate"
    )
    yield Setting("data_parallel_shard_degree", plan.dp_shard, "plan.dp_shard")
    reshard = "always" if plan.zero == 3 else "never"
    yield Setting("fsdp_reshard_after_forward", reshard, f"plan.zero {plan.zero}")
    yield Setting("tensor_parallel_degree", plan.tp, "plan.tp")
    name = "enable_sequence_parallel"
    yield Setting(
        name, plan.sequence_parallel or plan.tp == 1, "plan.sequence_parallel"
    )
    yield Setting("context_parallel_degree", plan.cp, "plan.cp")
    yield Setting("expert_parallel_degree", plan.ep, "plan.ep")
    yield Setting("pipeline_parallel_degree", plan.pp, "plan.pp")
    if plan.pp > 1:
        is_interleaved = plan.vpp > 1 and plan.schedule == "1f1b"
        schedule = INTERLEAVED if is_interleaved else SCHEDULES[plan.schedule]
        why = f"plan.schedule {plan.schedule}, plan.vpp {plan.vpp}"
        yield Setting("pipeline_parallel_schedule", schedule, why)
        name = "pipeline_parallel_microbatch_size"
        yield Setting(name, plan.micro_batch, "plan.micro_batch")


def _stage_lines(spec: Spec, plan: Plan) -> Iterator[Line]:
    """Yield the modules of each stage, in the order of the layers."""
    if plan.pp == 1:
        return
    counts = plan.chunk_layers(spec.model.first_dense_layers)
    yield "        module_fqns_per_model_part=[", "plan.stages, of each virtual stage"
    first = 0
    for number, count in enumerate(counts):
        names = [f'*(f"layers.{{i}}" for i in range({first}, {first + count}))']
        names = ['"tok_embeddings"', *names] if number == 0 else names
        names = [*names, '"norm", "lm_head"'] if number == len(counts) - 1 else names
        yield f"            [{', '.join(names)}],", f"{count} layers"
        first += count
    yield "        ],", ""


def _notes(spec: Spec) -> Iterator[str]:
    found = flavor(spec.model)
    if found is not None:
        yield f"`{MODULE}.py` takes torchtitan's own {found.module} {found.name}."
    else:
        yield f"`{MODULE}.py` builds torchtitan's Llama 3 with the numbers of the spec."
    yield "The tokenizer, the data and the learning rate in it are yours to change."
    said = ("compile", "cuda_graphs", "loss_chunks", "overlap.tp")
    yield from unsaid(spec, "torchtitan", said)


def refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    """Yield the choices of a plan that torchtitan has no settings for."""
    if plan.recomputes_some_layers:
        check = "torchtitan/distributed/activation_checkpoint.py: apply"
        sentence = (
            f"{plan.recompute} on {recomputed_text(plan)}: a policy wraps every block"
        )
        yield Refusal("recompute", sentence, check)
    yield from _model_refusals(spec, plan)
    yield from _training_refusals(spec, plan)


def _model_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    model = spec.model
    yield from layer_refusals(model, "torchtitan")
    if flavor(model) is None and not is_llama(model):
        sentence = f"{model.name}: none of its models is of this kind and shape"
        yield Refusal("model", sentence, "torchtitan/models: model_registry")
    if plan.precision == "fp8" and model.moe is not None:
        check = "torchtitan/components/quantization: Float8LinearConverter"
        yield Refusal("precision", "fp8 with experts: linear layers alone", check)


def _training_refusals(spec: Spec, plan: Plan) -> Iterator[Refusal]:
    training = spec.training
    configs = "torchtitan/config/configs.py: TrainingConfig"
    if training.optimizer != "adamw":
        check = "torchtitan/components/optimizer.py: default_adamw"
        yield Refusal("training.optimizer", f"{training.optimizer}", check)
    if training.gradients == "bf16":
        check = f"{configs}.mixed_precision_reduce"
        yield Refusal("training.gradients", "bf16: float32 is the only one", check)
    if plan.precision in ("fp16", "tf32"):
        check = f"{configs}.mixed_precision_param"
        yield Refusal("precision", f"{plan.precision}: bfloat16 or float32", check)
    if "tp" in overlap_of(spec) and not training.compile:
        sentence = "without training.compile, which splits matmuls for it"
        check = "torchtitan/config/configs.py: CompileConfig.__post_init__"
        yield Refusal("training.overlap.tp", sentence, check)
    if training.cuda_graphs == "outside_experts":
        sentence = "outside_experts: its graphs are those of the whole step"
        check = "torchtitan/trainer.py: _validate_cuda_graphs"
        yield Refusal("training.cuda_graphs", sentence, check)
    elif training.cuda_graphs and (plan.pp > 1 or plan.ep > 1):
        sentence = "beside a pipeline or experts that are spread: nothing is captured"
        check = "torchtitan/trainer.py: _validate_cuda_graphs"
        yield Refusal("training.cuda_graphs", sentence, check)
    if training.attention not in BACKENDS:
        check = "torchtitan/models/common/config_utils.py: get_attention_config"
        sentence = f"{training.attention}: its kernels are {', '.join(BACKENDS)}"
        yield Refusal("training.attention", sentence, check)
    elif training.attention == "flash2" and plan.cp > 1:
        check = "torchtitan/trainer.py: context parallelism needs FlexAttention"
        yield Refusal("training.attention", "flash2 beside context parallelism", check)


TARGET = Target(
    title="torchtitan",
    version="torchtitan 0.3.0, torch 2.14",
    framework="torchtitan",
    refusals=refusals,
    files=files,
)


class Flavor(NamedTuple):
    """A model of torchtitan: its module and its name there."""

    module: str
    name: str


FLAVORS = {
    tuple(shape): Flavor(module, name)
    for module, flavors in TABLES["torchtitan_flavors"].items()
    for name, shape in flavors.items()
}


def flavor(model: Model) -> Flavor | None:
    """Return the model of torchtitan that is of a shape, None where it has none."""
    inner = model.moe.d_ff if model.moe is not None else model.d_ff
    shape = (model.n_layers, model.d_model, model.n_heads, inner, model.vocab)
    is_of_kind = model.norm == "rmsnorm" and model.gated_mlp and model.bias == "none"
    found = FLAVORS.get(shape)
    return found if is_of_kind else None


def is_llama(model: Model) -> bool:
    """Return whether torchtitan's Llama 3 of other numbers is the model."""
    scaling = model.details.rope_scaling
    return (
        is_like_llama(model)
        and model.moe is None
        and model.bias == "none"
        and model.head_dim * model.n_heads == model.d_model
        and model.details.rope_share == 1
        and (scaling is None or scaling.form != "yarn")
    )


Line = tuple[str, str]
"""Code, and the comment behind it."""

BACKENDS = {"flash": "flex", "flash2": "varlen", "flash4": "flex_flash"}
"""Words for kernels of attention; those of FlexAttention are generated by PyTorch."""

_FLOAT8 = "torchtitan.components.quantization"


def imports(spec: Spec, plan: Plan) -> Iterator[str]:
    """Yield the imports that the lines on the model need."""
    if plan.precision == "fp8":
        yield f"from {_FLOAT8} import Float8LinearConverter"
    found = flavor(spec.model)
    if found is not None:
        yield f"from torchtitan.models.{found.module} import model_registry"
        return
    yield "import torchtitan.models.llama3 as llama3"
    yield "from torchtitan.distributed.pipeline_parallel import pipeline_llm"
    yield "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm"
    yield "from torchtitan.protocols.model_spec import ModelSpec"


def model_lines(spec: Spec, plan: Plan) -> list[Line]:
    """Return the lines that make `model_spec`."""
    found = flavor(spec.model)
    if found is None:
        return _llama_lines(spec, plan)
    said, lines = spec.training.attention, []
    if said != "flash":
        lines.append((f"    attn_backend={BACKENDS[said]!r},", "training.attention"))
    if plan.precision == "fp8":
        converter = "Float8LinearConverter.Config(model_compile_enabled=False)"
        lines.append((f"    converters=[{converter}],", "plan.precision fp8"))
    if not lines:
        return [(f"model_spec = model_registry({found.name!r})", "the spec's model")]
    first = ("model_spec = model_registry(", ""), (f"    {found.name!r},", "the model")
    return [*first, *lines, (")", "")]


def _stretch(scaling: RopeScaling | None) -> list[Line]:
    """Return the lines that stretch positions as Llama 3.1 does."""
    if scaling is None:
        return []
    values = {
        "scaling": "llama",
        "scaling_factor": scaling.factor,
        "low_freq_factor": scaling.low_freq,
        "high_freq_factor": scaling.high_freq,
        "original_max_position_embeddings": scaling.original_positions,
    }
    why = "model.details.rope_scaling"
    return [(f"    {name}={value!r},", why) for name, value in values.items()]


EPSILON = 1e-5
"""That of torchtitan's norms unless told (models/common/nn_modules.py: RMSNorm)."""


def _epsilon(epsilon: float | None) -> list[Line]:
    """Return the lines that set the epsilon of norms, where it is another one."""
    if epsilon in (None, EPSILON):
        return []
    norms = "*(norm for layer in config.layers for norm in (layer.attention_norm, "
    norms += "layer.ffn_norm))"
    return [
        (f"for norm in [config.norm, {norms}]:", ""),
        (f"    norm.eps = {epsilon!r}", "model.details.norm_eps"),
    ]


def _llama_lines(spec: Spec, plan: Plan) -> list[Line]:
    model = spec.model
    lines = [
        *_lines("torchtitan_rope", spec),
        *_stretch(model.details.rope_scaling),
        *_lines("torchtitan_llama", spec),
    ]
    if plan.precision == "fp8":
        converter = "Float8LinearConverter.Config(model_compile_enabled=False)"
        lines.append(
            (f"config = {converter}.build().convert(config)", "plan.precision")
        )
    lines += _epsilon(model.details.norm_eps)
    return lines + _lines("torchtitan_spec", spec)


def _lines(text: str, spec: Spec) -> list[Line]:
    """Return the lines of a text, each with its comment."""
    backend = BACKENDS[spec.training.attention]
    filled = TEXTS[text].format(
        model=spec.model, training=spec.training, backend=backend
    )
    parts = (line.partition("  # ") for line in filled.splitlines())
    return [(code, why) for code, _, why in parts]
