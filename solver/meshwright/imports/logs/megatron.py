"""Logs of Megatron-LM and of what prints as it does: arguments, times, memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from meshwright.errors import SpecError
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.megatron import read_arguments
from meshwright.imports.launches.settings import Setting, Settings
from meshwright.imports.logs.log_text import LogLine, StepTimes, log_lines, number
from meshwright.imports.logs.out_of_memory import find_out_of_memory
from meshwright.imports.logs.training_log import PartOf, Peak, TrainingLog, missing
from meshwright.imports.registry import TrainingLogImporter
from meshwright.reading.document import Where

_ARGUMENT = re.compile(r"[ ]{0,8}([a-z][\w.]{0,80})[ ]\.{0,80}[ ]?(.{0,4000})")

_STEP = re.compile(
    r"\biteration[ ]{1,12}(\d{1,12})/[ ]{0,12}(?:\d{1,12}|infinity)[ ]?\|"
    r".{0,4000}?elapsed time per iteration \((ms|s)\):[ ]{0,9}(\d{1,12}\.?\d{0,9})"
)

_VALUES = {
    "tflops": re.compile(
        r"(?:throughput|compute) per GPU \(TFLOP/s/GPU\):[ ]{0,9}([\d.]{1,20})"
        r"|\bTFLOPs:[ ]{0,9}([\d.]{1,20})"
    ),
    "tokens_per_s": re.compile(r"tokens(?:/s|/sec)?/GPU:[ ]{0,9}([\d.,]{1,20})"),
    "batch": re.compile(r"\|[ ]global batch size:[ ]{0,9}(\d{1,12})\b"),
}
"""Other numbers in the line of a step."""

_MEMORY = re.compile(
    r"\[Rank (\d{1,7})\].{0,200}?memory \(MB\)[ ]\|.{0,200}?"
    r"max allocated:[ ]([\d.]{1,24})"
)
_RESERVED = re.compile(r"max reserved:[ ]([\d.]{1,24})")

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
"""What the timers measure; the rest are parts of these, or are small."""

_ONCE = re.compile(r".*setup|load-.*|evaluate|save-.*")
"""Timers of what is no part of a step."""

_PADDED = re.compile(r"> padded vocab \(size: (\d{1,9})\)")

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
"""Beginnings of arguments, and the argument without which they change nothing."""

_OFF = ("None", "False", "", "1", "0")

_REPEATED = ("encoder_num_layers", "encoder_seq_length", "world_size")
"""Arguments that say again what others say, or that are read elsewhere."""

MIB = 1024.0
"""MiB of a GiB: Megatron-LM's MB are MiB."""

MOST_REPAIRS = 8
"""Arguments that are left open because their values are none that is known."""


def parse(text: str, name: str) -> TrainingLog:
    """Return what a log tells.

    Raises:
        SpecError: the text is too long, or tells nothing of a run.
    """
    lines = log_lines(text, name)
    steps, peaks = StepTimes(), dict[int, Peak]()
    settings, notes = _read_lines(lines, name, steps, peaks)
    launch = _launch(settings, name, notes)
    batch = steps.value("batch")
    if batch and "training.global_batch" not in launch.values:
        launch.set("training.global_batch", int(batch))
    if steps.restarts:
        notes.append(f"{name}: the run starts again {steps.restarts} times")
    return TrainingLog(
        "megatron_log",
        "Megatron-LM",
        launch,
        steps=steps.result(),
        peaks=tuple(peaks[rank] for rank in sorted(peaks)),
        tokens_per_s_per_gpu=steps.value("tokens_per_s"),
        tflops_per_gpu=steps.value("tflops"),
        parts=steps.parts(TIMERS),
        out_of_memory=find_out_of_memory(lines, steps),
        notes=tuple(notes),
        unknown=missing(launch),
    ).checked()


def _read_lines(
    lines: Sequence[LogLine], name: str, steps: StepTimes, peaks: dict[int, Peak]
) -> tuple[list[Setting], list[str]]:
    """Read all lines; return the arguments of the last dump, and notes."""
    settings: dict[str, Setting] = {}
    notes: list[str] = []
    interval, is_timed, scale = 1, False, 1e-3
    timer, is_dump = "", False
    for line in lines:
        text = line.text
        if " arguments ---" in text:
            is_dump = "end of" not in text
            if is_dump and not (settings and not steps.samples):
                settings = {}
                steps.restart()
        if "elapsed time per iteration" in text and (found := _STEP.search(text)):
            step = int(found[1])
            last = steps.samples[-1].step if steps.samples else None
            if last is not None and 0 < step - last <= 10_000:
                interval = step - last
            seconds = float(found[3]) / (1e3 if found[2] == "ms" else 1.0)
            steps.add(line, step, seconds, interval, _numbers(text))
            is_timed = False
        elif "memory (MB) |" in text and (found := _MEMORY.search(text)):
            _keep_peak(peaks, found, text)
        elif head := _TIMERS.search(text):
            is_timed, scale = True, 1.0 if head[1] == "s" else 1e-3
            for part in _INLINE.finditer(text, head.end()):
                _keep_part(steps, part[1], part[2], scale)
        elif is_timed and (found := _TIMER.match(text)):
            timer = found[1]
            if value := found[3] or found[4]:
                _keep_part(steps, timer, value, scale)
        elif is_timed and (found := _RANK_HEAD.match(text)):
            _keep_part(steps, timer, found[1], scale)
        elif (is_dump or " ...." in text) and (found := _ARGUMENT.match(text)):
            is_timed = False
            settings.setdefault(found[1], _argument(found, line, name))
        elif found := _PADDED.search(text):
            where = Where(name, line.number)
            settings["vocab_size"] = Setting(
                "vocab_size", found[1], where, "padded vocab (size"
            )
        elif "validation loss at" in text or "evaluating on" in text.lower():
            steps.happened("evaluation")
        elif "saving checkpoint" in text or "saved checkpoint" in text:
            steps.happened("checkpoint")
    return [*settings.values()], notes


def _numbers(text: str) -> dict[str, float]:
    """Return the other numbers in the line of a step."""
    found = ((key, pattern.search(text)) for key, pattern in _VALUES.items())
    values = (
        (key, number(next(filter(None, match.groups()))))
        for key, match in found
        if match
    )
    return {key: value for key, value in values if value}


def _keep_part(steps: StepTimes, timer: str, value: str, scale: float) -> None:
    seconds = number(value)
    if timer == "evaluate":
        steps.happened("evaluation")
    if seconds is not None and not _ONCE.fullmatch(timer):
        steps.add_part(timer, seconds * scale)


def _keep_peak(peaks: dict[int, Peak], found: re.Match[str], text: str) -> None:
    """Keep the highest peak of a rank."""
    rank, allocated = int(found[1]), (number(found[2]) or 0.0) / MIB
    match = _RESERVED.search(text)
    reserved = (number(match[1]) or 0.0) / MIB if match else None
    before = peaks.get(rank, Peak())
    if len(peaks) < 100_000:
        peaks[rank] = Peak(
            rank,
            max(allocated, before.allocated_gib or 0.0),
            _most(reserved, before.reserved_gib),
        )


def _most(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _argument(found: re.Match[str], line: LogLine, name: str) -> Setting:
    """Return an argument of the dump as the option that sets it."""
    key, value = found[1], found[2].strip()
    where = Where(name, line.number)
    value = value.removeprefix("AttnBackend.")
    return Setting(key, value, where, f"--{key.replace('_', '-')}")


def _launch(settings: Iterable[Setting], name: str, notes: list[str]) -> Launch:
    """Return the launch of the arguments that a log has."""
    options = [*_options({setting.name: setting for setting in settings})]
    gpus = next((own for own in settings if own.name == "world_size"), None)

    def read(kept: list[Setting]) -> Launch:
        launch = Launch("megatron_log", "Megatron-LM", "megatron", name)
        found = Settings(kept)
        if kept:
            read_arguments(found, launch)
            launch.idle.clear()  # A dump has the options that nobody gave, too.
        if gpus is not None and (count := Settings([gpus]).count("world_size")):
            launch.set("gpus", *count)
        return launch

    return read_settings(read, options, notes)


def read_settings(
    read: Callable[[list[Setting]], Launch], kept: list[Setting], notes: list[str]
) -> Launch:
    """Return the launch of settings; those that cannot be read are noted.

    A run that has a log has started: a value that is not known is left open.
    """
    for _ in range(MOST_REPAIRS):
        try:
            return read(kept)
        except SpecError as error:
            refused = next(
                (own for own in kept if str(error).startswith(f"{own.where}: ")), None
            )
            if refused is None:
                break
            notes.append(f"{error}; left open")
            kept = [own for own in kept if own.where != refused.where]
    notes.append("the configuration in the log cannot be read, and is left open")
    return read([])


def _options(dumped: dict[str, Setting]) -> Iterable[Setting]:
    """Yield arguments as a command has them: switches without values, no defaults."""

    def is_off(name: str) -> bool:
        return name not in dumped or dumped[name].value in _OFF

    left_out = {*_REPEATED}
    chunks = "virtual_pipeline_model_parallel_size"
    if not is_off("pipeline_model_parallel_layout"):
        left_out.add(chunks)
    if not (is_off(chunks) and is_off("pipeline_model_parallel_layout")):
        left_out |= {"num_layers_per_virtual_pipeline_stage"}
        left_out |= {"num_virtual_stages_per_pipeline_rank"}
    for key, setting in dumped.items():
        needs = next((_NEEDS[start] for start in _NEEDS if key.startswith(start)), None)
        is_idle = needs is not None and is_off(needs)
        if key in left_out or is_idle or setting.value in ("None", ""):
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


IMPORTERS = {
    "megatron_log": TrainingLogImporter(
        sign=r"elapsed time per iteration \(m?s\):|-{3,60} (?:end of )?(?:\w+ )?"
        r"arguments -{3,60}",
        parse=parse,
    ),
}
