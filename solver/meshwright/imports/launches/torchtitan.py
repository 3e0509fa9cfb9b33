"""torchtitan: arguments in a script, a configuration in Python, or TOML up to 0.2.2."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.imports.launches.command import (
    command_settings,
    option,
    options,
    read_launcher,
)
from meshwright.imports.launches.formats import parse_toml, python_settings
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.settings import (
    MOST_CHARACTERS,
    Setting,
    Settings,
    check_characters,
    fields,
)
from meshwright.imports.launches.shell import Argument, read_script
from meshwright.imports.registry import LaunchImporter
from meshwright.reading.document import Where

DEGREES = {
    "tensor_parallel_degree": "tp",
    "pipeline_parallel_degree": "pp",
    "context_parallel_degree": "cp",
    "expert_parallel_degree": "ep",
    "data_parallel_replicate_degree": "dp_replicate",
}
"""Fields of `parallelism` that hold degrees, and the fields of plans that they are."""

SCHEDULES = {
    "1F1B": "1f1b", "GPipe": "gpipe", "InterleavedZeroBubble": "zb-h1",
    "Interleaved1F1B": "1f1b", "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}  # fmt: skip
"""Names of schedules, and the schedules of plans that they are."""

HAS_CHUNKS = ("interleaved1f1b", "zbvzerobubble", "dualpipev")
"""Schedules of which a rank has several stages."""

STAGES_OF_A_RANK = 2
"""Stages of a rank under an interleaved schedule without layers or parts."""

POLICIES = {
    "none": "none", "null": "none", "selective": "selective", "full": "full",
    "selectiveac.config": "selective", "fullac.config": "full",
    "selectiveac": "selective", "fullac": "full",
}  # fmt: skip
"""Policies of activation checkpointing in all forms of the configuration."""

PRECISIONS = {
    "bfloat16": ["bf16", "fp8"], "float32": ["fp32", "tf32"],
    "torch.bfloat16": ["bf16", "fp8"], "torch.float32": ["fp32", "tf32"],
}  # fmt: skip

NOT_JUDGED = {
    "parallelism.fsdp_reshard_after_forward_policy": "not a policy that is known",
    "parallelism.pipeline_parallel_schedule_csv": "schedules of a file are not read",
}

_AS_COUNTED = (
    "training.mixed_precision_reduce", "training.dtype",
    "parallelism.context_parallel_load_balancer", "module", "config", "model.flavor",
    "model.name", "activation_checkpoint.selective_ac_option", "loss.loss_fn",
    "model_spec",
)  # fmt: skip


def parse(text: str, name: str, function: str | None = None) -> Launch:
    """Return the launch of a script or a configuration.

    Args:
        text: The file.
        name: Its name, for messages.
        function: That of a configuration in Python, where there are several.

    Raises:
        SpecError: the text is neither, or a value is none that its field takes.
    """
    check_characters(text, name)
    launch = Launch("torchtitan", "torchtitan", "torchtitan", name)
    if _PYTHON.search(text):
        settings = Settings(python_settings(text, name, function))
        read_plan(settings, launch, is_complete=True)
        _read_flavor(settings, launch, text)
        launch.close(settings)
        return launch
    script = read_script(text, name)
    marks = ("module", "job.config_file", "parallelism.tensor_parallel_degree",
             "parallelism.data_parallel_shard_degree", "training.local_batch_size",
             "parallelism.pipeline_parallel_degree")  # fmt: skip
    settings = Settings(command_settings(script, marks, _words))
    read_launcher(script, text, settings, launch)
    read_plan(settings, launch, is_complete=False)
    _name_files(settings, launch)
    launch.close(settings)
    return launch


def parse_old(text: str, name: str) -> Launch:
    """Return the launch of a file.

    Raises:
        SpecError: the text is no TOML, or a value is none that its field takes.
    """
    check_characters(text, name)
    launch = Launch("torchtitan_toml", "torchtitan", "torchtitan", name)
    settings = Settings(fields(parse_toml(text, name)))
    read_plan(settings, launch, is_complete=True)
    _read_flavor(settings, launch, text)
    launch.close(settings)
    return launch


def read_plan(settings: Settings, launch: Launch, *, is_complete: bool) -> None:
    """Read the plan and the job.

    Args:
        settings: Fields with dotted names.
        launch: Gets the values.
        is_complete: Whether a field that is not given has torchtitan's default; not so
            where arguments change the fields of a configuration by name.

    Raises:
        SpecError: a value is none that its field takes, or fields contradict.
    """
    settings.skip(*_AS_COUNTED)
    for name, field in DEGREES.items():
        launch.put(
            field, settings.count(f"parallelism.{name}"), 1 if is_complete else None
        )
    _read_shards(settings, launch, is_complete)
    _read_stages(settings, launch, is_complete)
    _read_batch(settings, launch)
    _read_state(settings, launch, is_complete)
    _read_recompute(settings, launch, is_complete)
    _read_kernels(settings, launch)
    launch.note_unpriced(settings, NOT_JUDGED, ("false", "none", ""))


KERNELS = {"flex": "flash", "varlen": "flash2", "flex_flash": "flash4", "sdpa": "cudnn"}
"""Words of torchtitan for attention, and the kernels that they are."""

_LLAMA3 = {"n_kv_heads": 8, "vocab": 128256}

FLAVORS: dict[tuple[str, str], dict[str, int]] = {
    ("llama3", "8B"): {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 14336}
    | _LLAMA3,
    ("llama3", "70B"): {"n_layers": 80, "d_model": 8192, "n_heads": 64, "d_ff": 28672}
    | _LLAMA3,
    ("llama3", "405B"): {
        "n_layers": 126,
        "d_model": 16384,
        "n_heads": 128,
        "d_ff": 53248,
    }
    | _LLAMA3,
    ("qwen3", "32B"): {"n_layers": 64, "d_model": 5120, "n_heads": 64},
    ("deepseek_v3", "16B"): {"n_layers": 27, "d_model": 2048, "n_heads": 16},
    ("deepseek_v3", "671B"): {"n_layers": 61, "d_model": 7168, "n_heads": 128},
}
"""Sizes of torchtitan's models by module and name (models/NAME/__init__.py)."""


BUNDLED = {
    ("llama3", "8B"): "llama3-8b",
    ("llama3", "70B"): "llama3-70b",
    ("llama3", "405B"): "llama3-405b",
    ("deepseek_v3", "671B"): "deepseek-v3",
    **{
        ("qwen3", size): f"qwen3-{size.lower()}"
        for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
    },
}
"""Models of TOML files, by name and flavor, and the bundled ones that they are."""


def _read_flavor(settings: Settings, launch: Launch, text: str) -> None:
    """Read the sizes of a model that `model_registry`, or a TOML file, names."""
    module, kind = settings.get("model.name"), settings.get("model.flavor")
    if module is not None and kind is not None:
        bundled = BUNDLED.get((str(module.value), str(kind.value)))
        if bundled is not None:
            launch.set("model", bundled, kind)
    named = settings.get("model_spec.model_registry")
    if named is None:
        return
    found = [
        sizes
        for (family, flavor), sizes in FLAVORS.items()
        if flavor == named.value and family in text.lower()
    ]
    if len(found) != 1:
        launch.unset.append(
            f"{named.where}: model_registry({named.shown!r}): its sizes are left open"
        )
        return
    for name, size in found[0].items():
        launch.set(f"model.{name}", size, named)


def _read_kernels(settings: Settings, launch: Launch) -> None:
    """Read options of compilation, CUDA graphs, chunks of the loss, and overlap."""
    for section in ("compile", "parallelism"):
        launch.put(
            "training.overlap.tp",
            settings.flag(f"{section}.enable_async_tensor_parallel"),
        )
    parts = settings.get("compile.components")
    is_whole = parts is None or parts.value is None or "model" in str(parts.value)
    if found := settings.flag("compile.enable", "training.compile"):
        launch.set("training.compile", found[0] and is_whole, found[1])
        if parts is not None and not is_whole:
            launch.is_not_judged(parts, "the model is not compiled, and counts as such")
    graphs = settings.flag("training.disable_cuda_graphs")
    if graphs and graphs[0] and _can_capture(launch):
        launch.set("training.cuda_graphs", False, graphs[1])
    launch.put("training.attention", settings.word(KERNELS, "model_spec.attn_backend"))
    launch.put("training.loss_chunks", settings.count("loss.num_chunks"))
    split = settings.flag("parallelism.enable_loss_parallel")
    whole = settings.is_on("parallelism.disable_loss_parallel")
    if split and launch.value("tp") != 1:
        launch.set("training.loss_parallel", *split)
    elif whole and launch.value("tp") != 1:
        launch.set("training.loss_parallel", False, whole)


def _can_capture(launch: Launch) -> bool:
    """Return whether graphs could replay the kernels: not pipelines, nor experts."""
    return launch.value("pp") in (None, 1) and launch.value("ep") in (None, 1)


def _read_shards(settings: Settings, launch: Launch, is_complete: bool) -> None:
    shards = settings.count("parallelism.data_parallel_shard_degree", least=-1)
    if shards and shards[0] > 0:
        launch.set("dp_shard", *shards)
    elif shards or is_complete:
        launch.set("dp_shard_rest", True, shards[1] if shards else None)
    words = {"default": "default", "always": "always", "never": "never"}
    reshard = settings.word(words, "parallelism.fsdp_reshard_after_forward")
    launch.put("reshard", reshard, "default" if is_complete else None)
    split = settings.flag("parallelism.enable_sequence_parallel")
    disabled = settings.is_on("parallelism.disable_sequence_parallel")
    if disabled and launch.value("tp") != 1:
        launch.set("sequence_parallel", False, disabled)
    elif split and launch.value("tp") != 1:
        launch.set("sequence_parallel", *split)
    elif is_complete:
        launch.set("sequence_parallel", True)


def _read_stages(settings: Settings, launch: Launch, is_complete: bool) -> None:
    name = "parallelism.pipeline_parallel_schedule"
    schedule = settings.word(SCHEDULES, name)
    if schedule:
        launch.set("schedule", *schedule)
        is_split = str(schedule[1].value).lower() in HAS_CHUNKS
        if (
            not is_split
            or "parallelism.pipeline_parallel_layers_per_stage" not in settings
        ):
            launch.set("vpp", STAGES_OF_A_RANK if is_split else 1)
    elif is_complete and name not in settings:
        launch.set("schedule", "1f1b")
        launch.set("vpp", 1)
    parts = settings.get("parallelism.module_fqns_per_model_part")
    if parts is not None and parts.value is not None:
        launch.set("stages", _layers_of_parts(parts), parts)
        launch.values.pop("vpp", None)
    count = settings.count("parallelism.pipeline_parallel_layers_per_stage")
    for where in ("first", "last"):
        settings.count(
            f"parallelism.pipeline_parallel_{where}_stage_less_layers", least=0
        )
    if count:
        launch.is_not_judged(count[1], "the stages are balanced best")


def _layers_of_parts(setting: Setting) -> list[int]:
    """Return the layers of each part of the model.

    Raises:
        SpecError: the value is no list of lists of names.
    """
    value: Any = setting.value
    is_list = isinstance(value, list) and all(isinstance(part, list) for part in value)
    if not is_list or not value:
        setting.refuse("expected a list of module names for each part")
    return [sum(str(name).startswith("layers.") for name in part) for part in value]


def _read_batch(settings: Settings, launch: Launch) -> None:
    for name, field in (
        ("training.seq_len", "training.seq_len"),
        ("training.local_batch_size", "local_batch"),
        ("training.batch_size", "local_batch"),
        ("parallelism.pipeline_parallel_microbatch_size", "pipeline_micro_batch"),
    ):
        launch.put(field, settings.count(name))
    batch = settings.count("training.global_batch_size", least=-1)
    if batch and batch[0] > 0:
        launch.set("training.global_batch", *batch)
    _read_tokens(settings, launch)


TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
STEP_TOKENS = "training.num_tokens_per_train_step"


def _read_tokens(settings: Settings, launch: Launch) -> None:
    """Read batches in tokens, as torchtitan counts them since 0.3.0.

    Raises:
        SpecError: they are no multiple of a sequence.
    """
    launch.put("training.seq_len", settings.count("training.max_context_length"))
    tokens = settings.count(TOKENS)
    step = settings.count(STEP_TOKENS, least=-1)
    rounds = settings.count("parallelism.num_pp_microbatches")
    length = launch.value("training.seq_len")
    for found, field in ((tokens, "micro_batch"), (step, "training.global_batch")):
        if found is None or found[0] == -1 or length is None:
            continue
        if found[0] % length:
            found[1].refuse(f"expected a multiple of the {length} tokens of a sequence")
        launch.set(field, found[0] // length, found[1])
    if tokens and length and rounds:
        launch.set("local_batch", tokens[0] // length * rounds[0], rounds[1])
        launch.set("pipeline_micro_batch", tokens[0] // length, tokens[1])


def _read_state(settings: Settings, launch: Launch, is_complete: bool) -> None:
    if offload := settings.flag("training.enable_cpu_offload"):
        launch.set("offload", "parameters" if offload[0] else "none", offload[1])
    elif is_complete:
        launch.set("offload", "none")
    converters = settings.get("model.converters")
    kind = settings.word(PRECISIONS, "training.mixed_precision_param")
    converters = converters or settings.get("model_spec.converters")
    if converters is not None and "float8" in str(converters.value).lower():
        launch.set("precision", "fp8", converters)
    elif kind:
        launch.set("precision", *kind)
    elif is_complete:
        launch.set("precision", ["bf16", "fp8"])
    optimizers = {"adam": "adamw", "adamw": "adamw", "default_adamw": "adamw"}
    optimizer = settings.get("optimizer.name", "optimizer")
    if optimizer is not None and str(optimizer.value).lower() in optimizers:
        launch.set("training.optimizer", "adamw", optimizer)


def _read_recompute(settings: Settings, launch: Launch, is_complete: bool) -> None:
    names = ("activation_checkpoint.mode", "activation_checkpoint")
    setting = settings.get(*names)
    if setting is not None and setting.value is None and not setting.unset:
        launch.set("recompute", "none", setting)
    elif mode := settings.word(POLICIES, *names):
        launch.set("recompute", *mode)
        every = settings.get("activation_checkpoint.selective_ac_option")
        is_other = every is not None and str(every.value) not in ("op", "1")
        if every is not None and is_other and mode[0] == "selective":
            launch.is_not_judged(every, "selective counts as per operation")
    elif (
        is_complete and setting is None and not any(name in settings for name in names)
    ):
        launch.set("recompute", "selective")


_PYTHON = re.compile(r"^(?:from|import)[ \t]+torchtitan\b", re.M)
_FILE = re.compile(r"[\w./-]{1,200}\.(?:toml|py)", re.ASCII)
_POLICY = re.compile(r"activation[-_]checkpoint:([a-z_-]{1,40})")


def _words(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of a command, and the policy of its last word."""
    plain = []
    for word in words:
        if found := _POLICY.fullmatch(word.text):
            at = Where(name, word.line)
            kind = found[1].replace("_", "-")
            yield Setting("activation_checkpoint.mode", kind, at, word.text[:21])
        else:
            plain.append(word)
    yield from options(plain, name)


def _name_files(settings: Settings, launch: Launch) -> None:
    """Name the files that have the rest: TOML, or a module beside the script."""
    file = settings.get("job.config_file")
    if file is not None and _FILE.fullmatch(str(file.value)):
        launch.files.append(file)
    module = settings.get("module")
    if module is not None and re.fullmatch(r"\w{1,100}", str(module.value), re.ASCII):
        path = Argument(module.written, module.where.line)
        launch.files.append(option(path, [f"{module.value}.py"], launch.name))


IMPORTERS = {
    "torchtitan": LaunchImporter(
        sign=r"(?m)\btorchtitan[./]train\b|--parallelism\.\w|"
        r"^(?:from|import)[ \t]{1,9}torchtitan\b",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
    "torchtitan_toml": LaunchImporter(
        sign=r"(?m)^\[(?:parallelism|activation_checkpoint|training|job)\]"
        r"[ \t]*(?:#.*)?$",
        parse=parse_old,
        most_characters=MOST_CHARACTERS,
    ),
}
