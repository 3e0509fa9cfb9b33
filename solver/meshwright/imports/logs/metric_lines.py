"""Logs of programs that write a line of metrics a step, or progress bars.

NeMo and PyTorch Lightning, LitGPT, MLPerf, nanoGPT, Nanotron, torchtune and verl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from meshwright.imports.launches import nanotron, recipes
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.megatron import read_plan
from meshwright.imports.launches.megatron_options import read_model, read_precision
from meshwright.imports.launches.settings import (
    OPTIONS,
    Setting,
    Settings,
    how_and_names,
)
from meshwright.imports.logs.log_text import LogLine, compiled, number, numbers_in
from meshwright.imports.logs.progress import ProgressBars
from meshwright.imports.logs.run_log import LogKind, LogReading, importers
from meshwright.imports.text import data_in, mapping
from meshwright.spec.units import GIB

_NUMBER = r"(-?\d{1,20}\.?\d{0,20}(?:e[+-]?\d{1,3})?)"

_STEP = re.compile(rf"\btrain_step_timing in s[:=] ?{_NUMBER}")
_GLOBAL_STEP = re.compile(rf"\bglobal_step[:=] ?{_NUMBER}")
_ITERATION = re.compile(r"\biteration (\d{1,12})/\d{1,12}")

_VALUES = compiled(
    {
        "batch": r"\bglobal_batch_size[:=] ?(\d{1,12})\b",
        "tflops": rf"\bTFLOPS_per_GPU[:=] ?{_NUMBER}",
        "tokens_per_s": rf"\btokens_per_sec_per_gpu[:=] ?{_NUMBER}",
    }
)
_BYTES = compiled(
    {
        "allocated": rf"\bmax_memory_allocated[:=] ?{_NUMBER}",
        "reserved": rf"\bmax_memory_reserved[:=] ?{_NUMBER}",
    }
)

_WORLD = re.compile(
    r"GLOBAL_RANK: \d{1,7}, MEMBER: \d{1,7}/(\d{1,7})"
    r"|Starting with (\d{1,7}) processes"
)

_FIELD = re.compile(
    r"(?:^|[\s(,])(tensor_model_parallel_size|pipeline_model_parallel_size"
    r"|virtual_pipeline_model_parallel_size|context_parallel_size"
    r"|expert_model_parallel_size|sequence_parallel|micro_batch_size"
    r"|global_batch_size|seq_length|num_layers|hidden_size|ffn_hidden_size"
    r"|num_attention_heads|num_query_groups|vocab_size|num_moe_experts"
    r"|recompute_granularity|recompute_method|recompute_num_layers"
    r"|use_distributed_optimizer|overlap_grad_reduce|overlap_param_gather"
    r"|tp_comm_overlap|bf16|fp8|gated_linear_unit|normalization"
    r"|share_embeddings_and_output_weights|add_bias_linear|add_qkv_bias"
    r"|moe_router_topk|moe_ffn_hidden_size)"
    r"[ ]{0,2}[:=][ ]{0,2}['\"]?([\w.-]{1,40})"
)
"""Fields of a configuration, as YAML or as arguments of a class."""

_WHOLE = ("num_layers", "hidden_size", "tensor_model_parallel_size")


def _read_lightning(reading: LogReading) -> Launch:
    bars = ProgressBars()
    for line in reading.lines:
        if not _keep_timing(reading, line):
            if "Validation" in line.text or "val_loss" in line.text:
                reading.steps.happened("evaluation")
                bars.happened("evaluation")
            elif ".ckpt" in line.text or "checkpoint" in line.text.lower():
                reading.steps.happened("checkpoint")
                bars.happened("checkpoint")
        if "Validation" not in line.text:
            bars.read(line)
    if not reading.steps.samples:
        reading.steps = bars.steps
    return _read_fields(reading)


def _keep_timing(reading: LogReading, line: LogLine) -> bool:
    """Keep the time in the line of a step; return whether it is one."""
    if "train_step_timing" not in line.text or not (found := _STEP.search(line.text)):
        return False
    steps = reading.steps
    counted = _GLOBAL_STEP.search(line.text) or _ITERATION.search(line.text)
    last = steps.samples[-1].step if steps.samples else -1
    step = int(float(counted[1])) if counted and abs(float(counted[1])) < 1e12 else None
    values = numbers_in(_VALUES, line.text)
    steps.add(line, last + 1 if step is None else step, float(found[1]), values=values)
    for kind, held in numbers_in(_BYTES, line.text).items():
        reading.keep_peak(line.rank, **{kind: held / GIB})
    return True


def _read_fields(reading: LogReading) -> Launch:
    """Return the launch of the fields that a log has of a configuration of Megatron."""
    found: dict[str, Setting] = {}
    gpus: Setting | None = None
    for line in reading.lines:
        for setting in _fields(line):
            found.setdefault(setting.name, setting)
        if gpus is None and (world := _WORLD.search(line.text)):
            size = int(world[1] or world[2])
            gpus = Setting("gpus", size, line.where, "MEMBER")

    def read(kept: list[Setting]) -> Launch:
        launch = reading.new_launch("megatron" if kept else "")
        settings = Settings(kept)
        if kept:
            is_complete = all(key in settings for key in _WHOLE)
            read_plan(settings, launch, is_complete=is_complete)
            read_precision(settings, launch, is_complete=False)
            read_model(settings, launch, is_complete=False)
            launch.idle.clear()
        if gpus is not None and (count := Settings([gpus]).count("gpus")):
            launch.set("gpus", *count)
        return launch

    return reading.launch(read, [*found.values()])


_FLAGS = {"true": True, "false": False}


def _fields(line: LogLine) -> Iterator[Setting]:
    """Yield the fields of a configuration in a line; none that is null."""
    if not any(word in line.text for word in ("_", "bf16", "fp8", "normalization")):
        return
    for found in _FIELD.finditer(line.text):
        word = found[2].rstrip(".")
        if word.lower() not in ("none", "null"):
            value = _FLAGS.get(word.lower(), word)
            yield Setting(found[1], value, line.where, found[1])


_AMOUNT = r"(\d{1,20}\.?\d{0,20}(?:e[+-]?\d{1,3})?[KMGT]?)"
_THOUSANDS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Peak(NamedTuple):
    """A peak of memory in the lines of a program."""

    kind: str
    pattern: str
    unit_gib: float = 1.0


@dataclass(frozen=True)
class Form:
    """The line of a step of one program, and its configuration."""

    title: str
    sign: str
    """A pattern that its logs have somewhere."""
    step: re.Pattern[str]
    """The number of the step; lines without it are none of a step."""
    seconds: re.Pattern[str]
    unit_s: float
    values: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    peaks: tuple[Peak, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    """Words of the configuration, and the settings that they are."""
    read: Callable[[Settings, Launch], None] | None = None
    """Reads the settings."""
    turn: re.Pattern[str] | None = None
    """The number of the micro-batch, where a program times each by itself."""
    framework: str = "fsdp"
    """Empty where the program has several."""


def _amount(found: re.Match[str] | None) -> float | None:
    """Return a number, with K for a thousand and M for a million; None without."""
    if found is None:
        return None
    text = next(filter(None, found.groups()))
    value = number(text.rstrip("KMGT"))
    return None if value is None else value * _THOUSANDS.get(text[-1], 1.0)


def _read_form(form: Form, reading: LogReading) -> Launch:
    """Read a log of one form, and return its launch."""
    micro = _micro_steps(form, reading)
    for line in reading.lines:
        for kind, pattern, unit_gib in form.peaks:
            if value := _amount(re.search(pattern, line.text)):
                reading.keep_peak(line.rank, **{kind: value * unit_gib})
        if found := form.step.search(line.text):
            _keep_step(reading, line, int(found[1]), form, micro)
        elif "Validating" in line.text or "Evaluat" in line.text:
            reading.steps.happened("evaluation")
        elif "checkpoint" in line.text.lower():
            reading.steps.happened("checkpoint")
    launch = _launch_of(form, reading)
    _keep_rates(reading, launch, form)
    return launch


def _keep_step(
    reading: LogReading, line: LogLine, step: int, form: Form, micro: int
) -> None:
    """Keep the time of a step, which may be that of one of its micro-batches."""
    seconds = _amount(form.seconds.search(line.text))
    values = {
        name: value
        for name, pattern in form.values.items()
        if (value := _amount(pattern.search(line.text)))
    }
    if seconds:
        reading.steps.add(line, step, seconds * form.unit_s * micro, values=values)


def _micro_steps(form: Form, reading: LogReading) -> int:
    """Return how many lines' times make a step, where each micro-batch has a line."""
    if form.turn is None:
        return 1
    ends: list[tuple[int, int]] = []
    for line in reading.lines:
        step, turn = form.step.search(line.text), form.turn.search(line.text)
        if step and turn:
            ends = [*ends[:1], (int(turn[1]), int(step[1]))]
    if len(ends) < 2 or ends[1][1] <= ends[0][1]:
        return 1
    (first, before), (last, after) = ends
    return min(max(round((last - first) / (after - before)), 1), 10**6)


def _keep_rates(reading: LogReading, launch: Launch, form: Form) -> None:
    """Keep steps of which a log has the rate alone, where batches are full.

    torchtune prints tokens per second; a step has batch x sequence x rounds of them
    where its data set is packed.
    """
    packed = launch.values.pop(PACKED, None)
    rate = form.values.get("tokens_per_s")
    sizes = [launch.value(name) for name in ("micro_batch", "training.seq_len")]
    is_known = packed is not None and packed.value and all(sizes)
    if reading.steps.samples or rate is None or not is_known:
        return
    tokens = sizes[0] * sizes[1] * (launch.value("microbatches") or 1)
    for line in reading.lines:
        found, speed = form.step.search(line.text), _amount(rate.search(line.text))
        if found and speed:
            values = {"tokens_per_s": speed}
            reading.steps.add(line, int(found[1]), tokens / speed, values=values)


PACKED = "packed"
"""The setting that says whether sequences are filled up with others."""

MOST_WORDS = 200
"""Most words of a configuration that are kept."""

_WORD = re.compile(
    r"(?:^|[\s({,'\"])(\w{2,60})['\"]?(?:=|:[ ])[ ]?(?:PosixPath\()?['\"]?"
    r"([^\s,'\"()]{1,300})"
)
"""A field of a configuration, as YAML, as an argument or as an entry."""

_SECTION = re.compile(r"(\w{2,60}):[ ]{0,9}", re.ASCII)
"""The line of YAML above the fields of a section."""


def _settings(form: Form, reading: LogReading) -> Iterator[Setting]:
    """Yield the settings of a configuration, the first of each."""
    seen: set[str] = set()
    section = ""
    for line in reading.lines:
        if form.step.search(line.text):
            continue
        if head := _SECTION.fullmatch(line.text):
            section = head[1]
        for found in _WORD.finditer(line.text):
            word, value = found[1], found[2]
            name = form.words.get(f"{section}.{word}", form.words.get(word))
            is_null = value.lower() in ("none", "null", "~")
            if name is None or name in seen or is_null or len(seen) >= MOST_WORDS:
                continue
            seen.add(name)
            yield Setting(name, _plain(value), line.where, name)


_ENUMERATED = re.compile(r"<?(?:[\w.]{1,200}\.)?(\w{1,80}):?>?")
"""A member of an enumeration, a type or an object of Python: its last word."""


def _plain(text: str) -> Any:
    """Return a word, or the flag that it is."""
    if text.startswith("<") or text.startswith("torch."):
        text = (_ENUMERATED.match(text) or [text, text])[1]
    return _FLAGS.get(text.lower(), text)


def _launch_of(form: Form, reading: LogReading) -> Launch:
    """Return the launch of the configuration that a program prints."""
    found = [*_settings(form, reading)]

    def read(kept: list[Setting]) -> Launch:
        launch = reading.new_launch(form.framework)
        if kept and form.read is not None:
            form.read(Settings(kept), launch)
        launch.idle.clear()
        launch.unknown.clear()
        return launch

    return reading.launch(read, found)


def _nanotron_words() -> dict[str, str]:
    """Return the fields of Nanotron's configuration that are read, by their last name.

    Its objects have other fields called `name`.
    """
    rows = [row for part in NANOTRON_ROWS for row in OPTIONS["nanotron"][part].values()]
    names = [name for row in rows for name in how_and_names(row)[1]]
    short = {name.rpartition(".")[2]: name for name in ("parallelism.dp", *names)}
    return {word: name for word, name in short.items() if word != "name"}


NANOTRON_ROWS = ("degrees", "counts", "engine", "sequences", "state", "sizes", "model")
NANOTRON = _nanotron_words()

ENGINES = {"OneForwardOneBackward": "1f1b", "AllForwardAllBackward": "afab"}
"""Beginnings of the names of Nanotron's pipeline engines, and their schedules."""


def _read_nanotron(settings: Settings, launch: Launch) -> None:
    """Read Nanotron's `Config(...)`, whose objects are named by their class."""
    if settings.get(f"{nanotron.MODEL}.hidden_size") is None:
        return
    kept = []
    for name in NANOTRON.values():
        setting = settings.get(name)
        if setting is None:
            continue
        value = setting.value
        if name == "parallelism.pp_engine":
            value = next((w for n, w in ENGINES.items() if n in str(value)), None)
        if name == "parallelism.tp_mode":
            value = str(value).lower()
        if value is not None:
            kept.append(Setting(name, value, setting.where, setting.written))
    nanotron.read_plan(Settings(kept), launch)


def _words(program: str, parts: Iterable[str], *others: str) -> dict[str, str]:
    """Return the settings that rows of options.yaml and others name, by their words.

    A word is the whole name, or its last part where no class is named by it.
    """
    rows = chain(*(OPTIONS[program][part].values() for part in parts))
    flat = chain(*(told if isinstance(told, list) else [told] for told in rows))
    names = [*chain(*(how_and_names(row)[1] for row in flat)), *others]
    short = {name.rpartition(".")[2]: name for name in names}
    short.pop("_component_", None)
    return short | {name: name for name in names}


def _read_litgpt(settings: Settings, launch: Launch) -> None:
    """Read the arguments that LitGPT prints."""
    recipes.read_litgpt(settings, launch, "train.micro_batch_size" in settings)


def _read_torchtune(settings: Settings, launch: Launch) -> None:
    """Read a recipe's configuration, and whether its rows are full."""
    recipes.read_torchtune(settings, launch, "model._component_" in settings)
    if (packed := settings.flag("dataset.packed")) is not None:
        launch.set(PACKED, *packed)


FORMS = {
    "nanotron_log": Form(
        "Nanotron",
        r"\biteration: \d{1,12} / \d{1,12} \| ",
        re.compile(r"\biteration: (\d{1,12}) / \d{1,12} \|"),
        re.compile(rf"\belapsed_time_per_iteration_ms: {_AMOUNT}"),
        1e-3,
        {
            "batch": re.compile(rf"\bglobal_batch_size: {_AMOUNT}"),
            "tokens_per_s": re.compile(rf"\btokens_per_sec_per_gpu: {_AMOUNT}"),
            "tflops": re.compile(rf"\bhardware_tflops_per_gpu: {_AMOUNT}"),
        },
        (
            Peak("reserved", rf"\bcuda_max_memory_reserved: {_AMOUNT}", 1 / GIB),
            Peak("reserved", rf"\bPeak reserved: {_AMOUNT}MiB", 2**-10),
            Peak("allocated", rf"\bPeak allocated:? {_AMOUNT}MiB", 2**-10),
        ),
        NANOTRON,
        _read_nanotron,
        framework="nanotron",
    ),
    "litgpt_log": Form(
        "LitGPT",
        r"\biter \d{1,12}[ |]{1,3}st[eE]p \d{1,12}\b.{1,99}\biter time: ",
        re.compile(r"\biter \d{1,12}[ |]{1,3}st[eE]p (\d{1,12})\b"),
        re.compile(rf"\biter time: {_AMOUNT} ?ms"),
        1e-3,
        peaks=(Peak("allocated", rf"\bMemory used: {_AMOUNT} GB", 1e9 / GIB),),
        words=_words(
            *("litgpt", ("plan", "weights"), "devices", "num_nodes", "checkpoint_dir"),
            *("model_name", "lora_r", "lora_dropout", *OPTIONS["litgpt"]["matrices"]),
        ),
        read=_read_litgpt,
        turn=re.compile(r"\biter (\d{1,12})\b"),
    ),
    "nanogpt_log": Form(
        "nanoGPT",
        r"\biter \d{1,12}: loss [\d.]{1,20}, time [\d.]{1,20}ms",
        re.compile(r"^iter (\d{1,12}): loss \d"),
        re.compile(rf"\btime {_AMOUNT}ms"),
        1e-3,
    ),
    "torchtune_log": Form(
        "torchtune",
        r"\bStep \d{1,12} \| loss:",
        re.compile(r"\bStep (\d{1,12}) \| loss:"),
        re.compile(rf"\bstep_time:{_AMOUNT}"),
        1.0,
        {"tokens_per_s": re.compile(rf"\btokens_per_second_per_gpu:{_AMOUNT}")},
        (
            Peak("allocated", rf"\bpeak_memory_alloc:{_AMOUNT}"),
            Peak("reserved", rf"\bpeak_memory_reserved:{_AMOUNT}"),
        ),
        _words(
            *("torchtune", ("plan", "chunks"), "dataset.packed", "model._component_"),
            *("model.lora_rank", "enable_activation_offloading"),
        ),
        _read_torchtune,
    ),
    "verl_log": Form(
        "verl",
        r"\bstep:\d{1,12} - [\w/]{1,60}:",
        re.compile(r"\bstep:(\d{1,12}) - "),
        re.compile(rf"\btiming_s/update_actor:{_AMOUNT}"),
        1.0,
        peaks=(
            Peak("allocated", rf"\bmax_memory_allocated_gb:{_AMOUNT}"),
            Peak("reserved", rf"\bmax_memory_reserved_gb:{_AMOUNT}"),
        ),
        framework="",
    ),
}
"""By kind, the lines of a program. Nanotron prints three digits (nanotron/logging:
`human_format`), LitGPT 1e9 bytes as GB (litgpt/finetune/lora.py), torchtune and verl
GiB. The time of a step of verl is that of the actor's update: what else a step of
reinforcement does is no training."""


MOST_OF_ENTRY = 5_000
"""Most characters of an entry of MLPerf's log."""

_COUNTS = {
    "global_batch_size": "training.global_batch",
    "max_sequence_length": "training.seq_len",
    "sequence_length": "training.seq_len",
    "seq_length": "training.seq_len",
    "gradient_accumulation_steps": "microbatches",
}


def _read_mlperf(reading: LogReading) -> Launch:
    """Read the lines of MLPerf's logger (mlcommons/logging, mllog.py)."""
    launch = reading.new_launch("megatron")
    for line in reading.lines:
        start = line.text.find(":::MLLOG {")
        if start < 0 or len(line.text) - start > MOST_OF_ENTRY:
            continue
        if entry := mapping(data_in(line.text[start + len(":::MLLOG ") :])):
            _keep_entry(reading, line, entry, launch)
    return launch


def _keep_entry(
    reading: LogReading, line: LogLine, entry: Mapping[str, Any], launch: Launch
) -> None:
    key, value = entry.get("key"), entry.get("value")
    if key == "eval_start":
        reading.steps.happened("evaluation")
    elif isinstance(value, dict):
        step = mapping(entry.get("metadata")).get("step")
        last = reading.steps.samples[-1].step if reading.steps.samples else 0
        counted = int(step) if _is_count(step) and step else last + 1
        if seconds := _measured(value, "train_step_time"):
            reading.steps.add(line, counted, seconds)
        if held := _measured(value, "max_memory_usage"):
            reading.keep_peak(line.rank, allocated=held / GIB)
    elif _is_count(value) and isinstance(key, str) and key in _COUNTS:
        field = _COUNTS[key]
        if field not in launch.values:
            launch.set(field, value, Setting(key, value, line.where, key))


def _measured(values: Mapping[str, Any], name: str) -> float:
    """Return a number of an entry, 0 where it has none."""
    value = values.get(name)
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_one and value and 0 < value < 1e15 else 0.0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9


IMPORTERS = importers(
    LogKind(
        "lightning_log",
        "NeMo, or PyTorch Lightning",
        r"\btrain_step_timing in s[:=]|\bEpoch \d{1,6}: {1,3}:? {0,4}\d{1,3}%\|",
        _read_lightning,
    ),
    LogKind("mlperf_log", "MLPerf", r":::MLLOG \{", _read_mlperf),
    *(
        LogKind(kind, form.title, form.sign, partial(_read_form, form))
        for kind, form in FORMS.items()
    ),
)
