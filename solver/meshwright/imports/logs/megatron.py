"""Logs of Megatron-LM and of what prints as it does: arguments, times, memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

from meshwright.imports.launches.launch import FieldValue, Launch
from meshwright.imports.launches.megatron import read_arguments
from meshwright.imports.launches.nemo import MEGATRON_BRIDGE
from meshwright.imports.launches.settings import OPTIONS, Setting, Settings
from meshwright.imports.logs.log_text import (
    LogLine,
    StepTimes,
    compiled,
    number,
    numbers_in,
)
from meshwright.imports.logs.run_log import LogKind, LogReading, importers
from meshwright.imports.logs.training_log import PartOf

_ARGUMENT = re.compile(r"[ ]{0,8}([a-z][\w.]{0,80})[ ]\.{0,80}[ ]?(.{0,4000})")

_STEP = re.compile(
    r"\biteration[ =]{1,12}(\d{1,12})/[ ]{0,12}(?:\d{1,12}|infinity)[ ]?\|"
    r".{0,300}?elapsed[ _]time[ _]per[ _]iteration[ _]\(?(ms|s)\)?[:=][ ]{0,9}"
    r"(\d{1,12}\.?\d{0,9})"
)

_BRIDGE = re.compile(
    r"Step Time ?: ?(\d{1,9}\.?\d{0,9})s GPU utilization: ?(\d{1,9}\.?\d{0,9}) ?MODEL"
)
"""The line that Megatron Bridge prints before that of the iteration."""

_VALUES = compiled(
    {
        "tflops": r"(?:throughput|compute) per GPU \(TFLOP/s/GPU\):[ ]{0,9}"
        r"([\d.]{1,20})|\bTFLOPs[:=][ ]{0,9}([\d.]{1,20})",
        "tokens_per_s": r"tokens(?:/s|/sec)?/GPU:[ ]{0,9}([\d.,]{1,20})"
        r"|tokens[ _]per[ _]gpu[ _]per[ _]second[ _]\(?tgs\)?[:=][ ]?([\d.,]{1,20})",
        "batch": r"\|[ ]global[ _]batch[ _]size[:=][ ]{0,9}(\d{1,12})\b",
    }
)
"""Other numbers in the line of a step."""

_MEMORY = re.compile(
    r"\[Rank (\d{1,7})\].{0,200}?memory \((MB|GB)\)[ ]\|.{0,400}?"
    r"max[ -]allocated(?:-gigabytes)?:[ ]([\d.]{1,24})"
)
_RESERVED = re.compile(r"max[ -]reserved(?:-gigabytes)?:[ ]([\d.]{1,24})")

_IN_GIB = {"MB": 2.0**-10, "GB": 1e9 / 2.0**30}
"""GiB of Megatron-LM's MB, which are MiB, and of Megatron Bridge's GB."""

_RANK_HEAD = re.compile(r"[ ]{0,8}rank[ ]{1,8}\d{1,7}:[ ]([\d.]{1,24})")
_TIMER = re.compile(
    r"[ ]{2,8}([a-z][\w/ -]{1,60}?)[ ]?\.{2,60}:[ ]?"
    r"(?:\(([\d.]{1,24}),[ ]([\d.]{1,24})\)|([\d.]{1,24})|)"
)
_INLINE = re.compile(r"([a-z][\w-]{1,60}):[ ]([\d.]{1,24})")
_TIMERS = re.compile(r"time(?:s)? across ranks \((ms|s)\):|^[ ]?time \((ms)\)[ ]\|")

TIMERS: dict[str, PartOf] = {
    "forward-backward": "forward and backward",
    "forward-compute": "forward",
    "backward-compute": "backward",
    "forward-recv": "pipeline",
    "forward-send": "pipeline",
    "backward-recv": "pipeline",
    "backward-send": "pipeline",
    "forward-send-backward-recv": "pipeline",
    "backward-send-forward-recv": "pipeline",
    "batch-generator": "input",
    "all-grads-sync": "gradient reduction",
    "backward-params-all-reduce": "gradient reduction",
    "grads-reduce-scatter": "gradient reduction",
    "grads-all-reduce": "gradient reduction",
    "params-all-gather": "parameter gather",
    "optimizer": "optimizer",
}
"""The parts of a step by timer; the rest are parts of these, or are small."""

_WORLD = re.compile(
    r"using world size: (?P<world_size>\d{1,7}), data-parallel size: "
    r"(?P<data_parallel_size>\d{1,7}).{0,200}?tensor-model-parallel size: "
    r"(?P<tensor_model_parallel_size>\d{1,7}).{0,200}?pipeline-model-parallel size: "
    r"(?P<pipeline_model_parallel_size>\d{1,7})"
)
"""Degrees that a log without its dump still says."""

_ONCE = re.compile(r".*setup|load-.*|evaluate|save-.*")
"""Timers of what is no part of a step."""

_PADDED = re.compile(r"padded vocab \(size: (\d{1,9})\)")

_NEGATED = {
    "add_bias_linear": "--disable-bias-linear",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "masked_softmax_fusion": "--no-masked-softmax-fusion",
    "bias_swiglu_fusion": "--no-bias-swiglu-fusion",
    "bias_dropout_fusion": "--no-bias-dropout-fusion",
    "apply_rope_fusion": "--no-rope-fusion",
}
"""Arguments whose option switches them off, by their names in the log."""

_NEEDS = {
    "moe_": "num_experts",
    "cp_comm_type": "context_parallel_size",
    "num_query_groups": "group_query_attention",
    "expert_": "num_experts",
    "data_parallel_sharding_strategy": "use_megatron_fsdp",
    "optimizer_offload_fraction": "optimizer_cpu_offload",
}
"""By how arguments begin, the argument that must be on for them to change anything."""

_SWITCHED_OFF = {
    "tp_comm_overlap": "training.overlap.tp",
    "overlap_moe_expert_parallel_comm": "training.overlap.ep",
    "distribute_saved_activations": "training.partition_activations",
}
"""Switches that are off where a dump says False, as no command line does."""

_ALWAYS = "num_attention_heads"
"""An argument that every dump has."""

_SAID = {
    "vocab_size": "model.vocab",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
}
"""Fields by the facts that a log states outside of its dump."""

DENSE = "[1]"
"""The number of experts that Megatron-DeepSpeed prints for a model without any."""

_OFF = ("None", "False", "", "1", "0", DENSE)

_REPEATED = ("encoder_num_layers", "encoder_seq_length", "world_size")
"""Arguments that say again what others say, or that are read elsewhere."""

_OF_MEGATRON = ("zero", "offload", "schedule", "groups_are_pp", "training.gradients")
"""Fields that the engine of DeepSpeed decides in its place."""

MOST_INTERVAL = 10_000
"""Most iterations between two lines of one run."""


def _read(reading: LogReading) -> Launch:
    return _launch(_read_lines(reading), reading)


def _read_bridge(reading: LogReading) -> Launch:
    _read_lines(reading)
    return _recipe(reading) or reading.new_launch("megatron")


def _recipe(reading: LogReading) -> Launch | None:
    """Return the launch of the recipe that Megatron Bridge prints as YAML."""
    lines = reading.lines
    starts = (at for at, line in enumerate(lines) if _RECIPE in line.text)
    if (start := next(starts, None)) is None:
        return None
    rank, behind = lines[start].rank, lines[start + 1 : start + MOST_OF_RECIPE]
    same = (line for line in behind if line.rank == rank)
    rows = [*takewhile(lambda line: _RECIPE_LINE.match(line.text), same)]
    launch = reading.parsed(MEGATRON_BRIDGE.parse, rows)
    used = next((found for line in rows if (found := _USED.match(line.text))), None)
    if launch is not None and used is not None:
        # The model's own length is the most it can take; sequences have that of data.
        launch.values["training.seq_len"] = FieldValue(int(used[1]))
    return launch


_RECIPE = "------- Task Configuration -------"
_RECIPE_LINE = re.compile(r"[ ]{0,40}(?:-[ ]|[\w.-]{1,80}:|-$|$)")
_USED = re.compile(r"  (?:sequence_length|seq_length): (\d{1,9})$")

MOST_OF_RECIPE = 5_000
"""Most lines of a recipe."""


def _read_lines(reading: LogReading) -> list[Setting]:
    """Read all lines; return the arguments of the last dump."""
    steps = reading.steps
    settings: dict[str, Setting] = {}
    is_timed, scale = False, 1e-3
    timer, is_dump, alone = "", False, StepTimes()
    for line in reading.lines:
        text = line.text
        if " arguments ---" in text:
            is_dump = "end of" not in text
            if is_dump and not (settings and not steps.samples):
                settings = {}
                steps.restart()
        if keep_step(steps, line):
            is_timed = False
        elif "Step Time" in text and (found := _BRIDGE.search(text)):
            steps.pending_values["tflops"] = float(found[2])
            alone.add(line, len(alone.samples) + 1, float(found[1]))
        elif keep_memory(reading, text):
            continue
        elif head := _TIMERS.search(text):
            is_timed, scale = True, 1.0 if head[1] == "s" else 1e-3
            for part in _INLINE.finditer(text, head.end()):
                _keep_part(steps, part[1], part[2], scale)
        elif is_timed and (found := _TIMER.match(text)):
            timer = found[1]
            if value := found[3] or found[4]:
                _keep_part(steps, timer, value, scale, found[2])
        elif is_timed and (found := _RANK_HEAD.match(text)):
            _keep_part(steps, timer, found[1], scale)
        elif (is_dump or " ...." in text) and (found := _ARGUMENT.match(text)):
            is_timed = False
            settings.setdefault(found[1], _argument(found, line))
        elif "using world size" in text and (found := _WORLD.search(text)):
            for key, value in found.groupdict().items():
                words = key.replace("_", "-")
                settings.setdefault(key, Setting(key, value, line.where, words))
        elif size := _padded_vocab(line):
            settings[size.name] = size
        elif "validation loss at" in text or "evaluating on" in text.lower():
            steps.happened("evaluation")
        elif "saving checkpoint" in text or "saved checkpoint" in text:
            steps.happened("checkpoint")
    if not steps.samples and alone.samples:
        reading.steps = alone
    return [*settings.values()]


def keep_step(steps: StepTimes, line: LogLine) -> bool:
    """Keep the time in the line of an iteration; return whether it is one."""
    if "elapsed" not in line.text or not (found := _STEP.search(line.text)):
        return False
    step, last = int(found[1]), steps.samples[-1] if steps.samples else None
    interval = step - last.step if last is not None else 1
    if last is not None and not 0 < interval <= MOST_INTERVAL:
        interval = last.steps
    unit = 1.0 if found[2] == "s" else 1e3
    steps.add(
        line, step, float(found[3]) / unit, interval, numbers_in(_VALUES, line.text)
    )
    return True


def keep_memory(reading: LogReading, text: str) -> bool:
    """Keep the peak in the report of a rank; return whether it is one."""
    if "B) |" not in text or not (found := _MEMORY.search(text)):
        return False
    gib, reserved = _IN_GIB[found[2]], _RESERVED.search(text)
    reading.keep_peak(
        int(found[1]),
        allocated=(number(found[3]) or 0.0) * gib,
        reserved=(number(reserved[1]) or 0.0) * gib if reserved else None,
    )
    return True


def _keep_part(
    steps: StepTimes, timer: str, value: str, scale: float, least: str | None = None
) -> None:
    """Keep a timer of the slowest rank, and of the fastest where that is printed."""
    seconds, fastest = number(value), number(least) if least else None
    if timer == "evaluate":
        steps.happened("evaluation")
    if seconds is not None and not _ONCE.fullmatch(timer):
        steps.add_part(timer, seconds * scale, fastest and fastest * scale)


def _padded_vocab(line: LogLine) -> Setting | None:
    """Return the size of the vocabulary that a line on its padding says."""
    if "padded" not in line.text or not (found := _PADDED.search(line.text)):
        return None
    return Setting("vocab_size", found[1], line.where, "padded vocab (size")


def _argument(found: re.Match[str], line: LogLine) -> Setting:
    """Return an argument of the dump as the option that sets it."""
    key, value = found[1], found[2].strip().removeprefix("AttnBackend.")
    return Setting(key, value, line.where, f"--{key.replace('_', '-')}")


def _launch(settings: Iterable[Setting], reading: LogReading) -> Launch:
    """Return the launch of the arguments that a log has."""
    given = {setting.name: setting for setting in settings}
    options = [*_options(given)]
    gpus = next((setting for setting in settings if setting.name == "world_size"), None)

    def read(kept: list[Setting]) -> Launch:
        launch = reading.new_launch("megatron")
        found = Settings(kept)
        if any(setting.name == _ALWAYS for setting in kept):
            read_arguments(found, launch)
            launch.idle.clear()  # A dump has the options that nobody gave, too.
            for name, field in _SWITCHED_OFF.items():
                setting = given.get(name)
                if setting and setting.value == "False" and field not in launch.values:
                    launch.set(field, False, setting)
            return _with_gpus(launch, gpus)
        for key, field in _SAID.items():
            launch.put(field, found.count(key))
        return _with_gpus(launch, gpus)

    return reading.launch(read, options)


def _with_gpus(launch: Launch, gpus: Setting | None) -> Launch:
    if gpus is not None and (count := Settings([gpus]).count("world_size")):
        launch.set("gpus", *count)
    return launch


def dumped(reading: LogReading) -> dict[str, Setting]:
    """Return the arguments that Megatron-DeepSpeed dumps by name; none if it does not.

    Where the run starts again, those of the last start with a step count.
    """
    found: dict[str, Setting] = {}
    last, has_run = found, False
    for line in reading.lines:
        if " arguments ---" in line.text and "end of" not in line.text and has_run:
            last, found, has_run = found, {}, False
        has_run = has_run or "elapsed time per iteration" in line.text
        if " ..." in line.text and (match := _ARGUMENT.match(line.text)):
            found.setdefault(match[1], _argument(match, line))
        elif size := _padded_vocab(line):
            found[size.name] = size
    found = found if has_run else last
    return found if _ALWAYS in found else {}


def arguments(reading: LogReading) -> dict[str, FieldValue]:
    """Return the values of the arguments that Megatron-DeepSpeed dumps, if it does."""
    found = dumped(reading)
    if not found:
        return {}
    values = _launch(found.values(), reading).values
    repeated = (found.get(name) for name in OPTIONS["deepspeed"]["checkpoints"])
    for setting in (mode for mode in repeated if mode and mode.value == "True"):
        values["recompute"] = FieldValue("full", setting)
    return {
        key: value
        for key, value in values.items()
        if key not in _OF_MEGATRON and not key.startswith("training.overlap.")
    }


def _options(given: dict[str, Setting]) -> Iterable[Setting]:
    """Yield arguments as a command has them: switches without values, no defaults."""

    def is_off(name: str) -> bool:
        return name not in given or given[name].value in _OFF

    left_out = {*_REPEATED}
    chunks = "virtual_pipeline_model_parallel_size"
    if not is_off("pipeline_model_parallel_layout"):
        left_out.add(chunks)
    if not (is_off(chunks) and is_off("pipeline_model_parallel_layout")):
        left_out |= {"num_layers_per_virtual_pipeline_stage"}
        left_out |= {"num_virtual_stages_per_pipeline_rank"}
    for key, setting in given.items():
        needs = next((_NEEDS[start] for start in _NEEDS if key.startswith(start)), None)
        is_idle = needs is not None and is_off(needs)
        if key in left_out or is_idle or setting.value in ("None", ""):
            continue
        if key == "num_experts" and setting.value == DENSE:
            continue
        if setting.value == "False" and key in _NEGATED:
            written = _NEGATED[key]
            short = written.lstrip("-").replace("-", "_")
            yield Setting(short, None, setting.where, written)
        elif setting.value == "True":
            yield Setting(key, None, setting.where, setting.written)
        elif setting.value != "False":
            yield setting if "[" not in setting.value else _list(setting)


def _list(setting: Setting) -> Setting:
    """Return an argument whose value is the text of a list, with the list."""
    words = str(setting.value).strip("[]").split(",")
    values = [word.strip(" '\"") for word in words]
    is_whole = all(value.isascii() and value.isdigit() for value in values)
    found = [int(value[:12]) for value in values] if is_whole else values
    return Setting(setting.name, found, setting.where, setting.written)


IMPORTERS = importers(
    LogKind(
        "megatron_bridge_log",
        "Megatron Bridge",
        r"MODEL_TFLOP/s/GPU|------- Task Configuration -------",
        _read_bridge,
        TIMERS,
    ),
    LogKind(
        "megatron_log",
        "Megatron-LM",
        r"elapsed[ _]time[ _]per[ _]iteration|-{3,60} (?:end of )?(?:\w+ )?"
        r"arguments -{3,60}",
        _read,
        TIMERS,
    ),
)
