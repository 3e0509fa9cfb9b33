"""Logs of NeMo and PyTorch Lightning: lines of steps, or progress bars."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.megatron import read_plan
from meshwright.imports.launches.megatron_options import read_model, read_precision
from meshwright.imports.launches.settings import Setting, Settings
from meshwright.imports.logs.log_text import LogLine, StepTimes, numbers_in
from meshwright.imports.logs.progress import ProgressBars
from meshwright.imports.logs.run_log import LogReading
from meshwright.imports.logs.training_log import TrainingLog
from meshwright.imports.registry import TrainingLogImporter
from meshwright.reading.document import Where

_NUMBER = r"(-?\d{1,20}\.?\d{0,20}(?:e[+-]?\d{1,3})?)"

_STEP = re.compile(rf"\btrain_step_timing in s[:=] ?{_NUMBER}")
_GLOBAL_STEP = re.compile(rf"\bglobal_step[:=] ?{_NUMBER}")
_ITERATION = re.compile(r"\biteration (\d{1,12})/\d{1,12}")

_VALUES = {
    "batch": re.compile(r"\bglobal_batch_size[:=] ?(\d{1,12})\b"),
    "tflops": re.compile(rf"\bTFLOPS_per_GPU[:=] ?{_NUMBER}"),
    "tokens_per_s": re.compile(rf"\btokens_per_sec_per_gpu[:=] ?{_NUMBER}"),
}
_BYTES = {
    "allocated": re.compile(rf"\bmax_memory_allocated[:=] ?{_NUMBER}"),
    "reserved": re.compile(rf"\bmax_memory_reserved[:=] ?{_NUMBER}"),
}

_GIB = 2.0**30

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


def parse(text: str, name: str) -> TrainingLog:
    """Return what a log tells.

    Raises:
        SpecError: the text is too long, or tells nothing of a run.
    """
    reading = LogReading(text, name)
    bars = ProgressBars()
    for line in reading.lines:
        if not keep_step(reading, line):
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
    launch = read_fields(reading, "lightning_log", "NeMo, or PyTorch Lightning")
    return reading.log("lightning_log", launch.title, launch)


def keep_step(reading: LogReading, line: LogLine) -> bool:
    """Keep the time in the line of a step; return whether it is one."""
    if "train_step_timing" not in line.text or not (found := _STEP.search(line.text)):
        return False
    steps: StepTimes = reading.steps
    counted = _GLOBAL_STEP.search(line.text) or _ITERATION.search(line.text)
    last = steps.samples[-1].step if steps.samples else -1
    step = int(float(counted[1])) if counted and abs(float(counted[1])) < 1e12 else None
    values = numbers_in(_VALUES, line.text)
    steps.add(line, last + 1 if step is None else step, float(found[1]), values=values)
    peak = {kind: of / _GIB for kind, of in numbers_in(_BYTES, line.text).items()}
    if peak:
        reading.keep_peak(line.rank, peak.get("allocated"), peak.get("reserved"))
    return True


def read_fields(reading: LogReading, kind: str, title: str) -> Launch:
    """Return the launch of the fields that a log has of a configuration of Megatron."""
    found: dict[str, Setting] = {}
    gpus: Setting | None = None
    for line in reading.lines:
        for setting in _fields(line, reading.name):
            found.setdefault(setting.name, setting)
        if gpus is None and (world := _WORLD.search(line.text)):
            where = Where(reading.name, line.number)
            gpus = Setting("gpus", int(world[1] or world[2]), where, "MEMBER")

    def read(kept: list[Setting]) -> Launch:
        launch = Launch(kind, title, "megatron" if kept else "", reading.name)
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


_WORDS = {"true": True, "false": False}


def _fields(line: LogLine, name: str) -> Iterator[Setting]:
    """Yield the fields of a configuration in a line; none that is null."""
    if not any(word in line.text for word in ("_", "bf16", "fp8", "normalization")):
        return
    for found in _FIELD.finditer(line.text):
        word = found[2].rstrip(".")
        if word.lower() not in ("none", "null"):
            value = _WORDS.get(word.lower(), word)
            yield Setting(found[1], value, Where(name, line.number), found[1])


IMPORTERS = {
    "lightning_log": TrainingLogImporter(
        sign=r"\btrain_step_timing in s[:=]|\bEpoch \d{1,6}: {1,3}:? {0,4}\d{1,3}%\|",
        parse=parse,
    ),
}
