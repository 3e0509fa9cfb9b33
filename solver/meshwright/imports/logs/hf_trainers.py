"""Logs of Hugging Face's Trainer, TRL, Axolotl, Unsloth, and `trainer_state.json`."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

from meshwright.imports.launches.deepspeed import read_plan
from meshwright.imports.launches.hf_trainers import IMPORTERS as CONFIGURATIONS
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.settings import Setting, Settings
from meshwright.imports.logs.log_text import LogLine, StepTimes, compiled, number
from meshwright.imports.logs.progress import ProgressBars
from meshwright.imports.logs.run_log import (
    LogKind,
    LogReading,
    count_of,
    importers,
    json_settings,
)
from meshwright.imports.text import fail, mapping, mappings
from meshwright.reading.document import Where

_DICT = re.compile(r"\{['\"](?:\w|/| |\(|\)){1,60}['\"]: .{1,3000}\}")
_ENTRY = re.compile(
    r"['\"]([\w/ ().-]{1,60})['\"]: ['\"]?(-?\d{1,20}\.?\d{0,20}(?:e[+-]?\d{1,3})?)\b"
)
"""A number of a dictionary; Axolotl and new Trainers print numbers as texts."""

_SAID = compiled(
    {
        "micro_batch": r"(?:Instantaneous batch size per device|Batch size per device)"
        r"[ ]=[ ]{1,9}([\d,]{1,12})",
        "microbatches": r"Gradient [Aa]ccumulation steps[ ]=[ ]{1,9}([\d,]{1,12})",
        "training.global_batch": r"Total (?:train )?batch size[ ](?:\([^)]{1,80}\)[ ])?"
        r"=[ ]{1,9}([\d,]{1,12})",
        "gpus": r"(?:Data Parallel GPUs[ ]=[ ]{1,9}|\"world_size\": |\bworld_size: )"
        r"([\d,]{1,12})",
    }
)
"""Lines of the Trainer, of Unsloth and of ms-swift before the first step."""

_TOTAL = re.compile(
    r"Total optimization steps[ ]=[ ]{1,9}([\d,]{1,12})"
    r"|['\"]global_step/max_steps['\"]: ['\"]\d{1,12}/(\d{1,12})"
    r"|^max_steps=(\d{1,12}),?$"
)
"""The steps of a run, as the Trainer and ms-swift say them."""

_ARGUMENT = re.compile(r"^(\w{1,60})=(.{1,20000}?),?[ ]*$")
_ARGUMENTS = re.compile(r"\b(?:\w{0,40}Arguments|(?:SFT|DPO|GRPO|KTO)Config)\(")
_NO_LIGER_LOSS = "loss function defined in Liger Kernel will not take effect"
"""What ms-swift warns of where it computes the loss itself."""

_ALWAYS = "per_device_train_batch_size="
"""An argument of every dump that tells how a run trains."""
_CONFIG = re.compile(r"\bconfig:[ ]{0,4}(\{?)[ ]*$")

_PEAK = re.compile(r"Peak (?:reserved )?memory[ ]=[ ]([\d.]{1,12})[ ]GB\.")

_MEMORY = {
    "memory(GiB)": ("reserved", 1.0),  # ms-swift
    "memory/max_allocated (GiB)": ("allocated", 1.0),
    "memory/max_alloc (GiB)": ("allocated", 1.0),
    "memory/max_mem_allocated(gib)": ("allocated", 1.0),
    "memory/device_reserved (GiB)": ("reserved", 1.0),
    "memory/device_mem_reserved(gib)": ("reserved", 1.0),
    "total_peak_memory_allocated_MB": ("allocated", 2.0**-10),
    "total_peak_memory_reserved_MB": ("reserved", 2.0**-10),
}
"""Entries with a peak: its kind, and GiB of its unit. The last two are MiB, as Liger's
example prints them (examples/huggingface/callback.py)."""

_SPEED = (
    "tokens_per_second_per_gpu",
    "tokens/train_per_sec_per_gpu",
    "train_tokens_per_second",
)

MOST_ARGUMENTS = 400
"""Most lines of arguments."""

MOST_VALUE = 1e15
"""Entries of dictionaries are below this, or are no measurements."""

MOST_ENTRIES = 500_000
"""Most entries of a history."""


def _read(reading: LogReading) -> Launch:
    """Read a log of a terminal, or `trainer_state.json`, and return its launch.

    The time of a step is taken from progress bars; without, it is the run time over
    the steps, less evaluations.
    """
    if _STATE.match(reading.text[:SIGN_OF_STATE]):
        return _state(reading)
    bars = ProgressBars()
    history: list[dict[str, float]] = []
    said: list[Setting] = []
    configuration: Launch | None = None
    whole_loss = False
    for index, line in enumerate(reading.lines):
        for entries in _dictionaries(line.text):
            history.append(entries)
            if "eval_runtime" in entries:
                bars.happened("evaluation")
        if "Saving model checkpoint" in line.text or "Saving checkpoint" in line.text:
            bars.happened("checkpoint")
        bars.read(line)
        whole_loss = whole_loss or _NO_LIGER_LOSS in line.text
        if total := _TOTAL.search(line.text):
            bars.said = count_of(next(filter(None, total.groups()))) or 0
        if " = " in line.text or "world_size" in line.text:
            said += _said(line)
            if peak := _PEAK.search(line.text):
                reading.keep_peak(line.rank, reserved=number(peak[1]))
        configuration = configuration or _configuration(reading, index)
    steps = bars.steps
    if steps.samples:
        reading.steps = steps
    else:
        _keep_mean(reading, history, bars.total)
    _keep_entries(reading, history)
    if configuration is not None and whole_loss:
        for field in ("training.fused.loss", "training.loss_chunks"):
            configuration.values.pop(field, None)
    return _launch(reading, said, configuration)


def _launch(
    reading: LogReading, said: list[Setting], configuration: Launch | None
) -> Launch:
    """Return the launch of a configuration and of what the Trainer says."""

    def read(kept: list[Setting]) -> Launch:
        launch = reading.new_launch()
        if configuration is not None:
            launch.values |= configuration.values
            launch.framework = configuration.framework
            launch.unset += configuration.unset
        settings = Settings(kept)
        for field in _SAID:
            if (found := settings.count(field)) and field not in launch.values:
                launch.set(field, *found)
        sizes = ("training.global_batch", "micro_batch", "microbatches")
        batch, size, rounds = (launch.value(field) for field in sizes)
        each = (size or 0) * (rounds or 0)
        if batch and each and batch % each == 0 and not launch.value("gpus"):
            launch.set("gpus", batch // each, launch.setting("training.global_batch"))
        return launch

    return reading.launch(read, said)


def _said(line: LogLine) -> Iterator[Setting]:
    """Yield the numbers that a line says."""
    for field, pattern in _SAID.items():
        if (found := pattern.search(line.text)) and (value := count_of(found[1])):
            yield Setting(field, value, line.where, found[0].partition(" =")[0])


def _configuration(reading: LogReading, index: int) -> Launch | None:
    """Return the launch of a configuration that starts at a line, if one does."""
    line = reading.lines[index]
    text = line.text
    if "config:" in text and (found := _CONFIG.search(text)):
        start, at = found[1], index
        if not start and index + 1 < len(reading.lines):
            at, start = index + 1, reading.lines[index + 1].text.strip()
        if start == "{":
            rows = reading.until_closed(at, start)
            parse = CONFIGURATIONS["axolotl"].parse
            return reading.parsed(parse, rows) if rows else None
    if "(" in text and _ARGUMENTS.search(text):
        behind = reading.lines[index + 1 : index + MOST_ARGUMENTS]
        given = [*takewhile(lambda line: _ARGUMENT.match(line.text), behind)]
        if any(line.text.startswith(_ALWAYS) for line in given):
            return _arguments(reading, given)
    return None


_ENGINE = "deepspeed={"
"""How the argument begins that has the text of DeepSpeed's configuration."""


def _arguments(reading: LogReading, given: list[LogLine]) -> Launch | None:
    """Return the launch of arguments, with DeepSpeed's file if its text is in them."""
    engine = [line for line in given if line.text.startswith(_ENGINE)]
    plain = [line for line in given if line not in engine]
    rows = [line._replace(text=_as_yaml(line.text)) for line in plain]
    launch = reading.parsed(CONFIGURATIONS["trl"].parse, rows)
    if launch is None or not engine:
        return launch
    value = _value(engine[0].text.partition("=")[2])
    row = engine[0]._replace(text=json.dumps(value))
    settings = [*json_settings([row])]
    return reading.launch(partial(_with_engine, launch), settings)


def _with_engine(launch: Launch, settings: list[Setting]) -> Launch:
    """Return a launch with the plan of DeepSpeed's configuration."""
    found = replace(launch, framework="deepspeed", values=dict(launch.values))
    read_plan(Settings(settings), found)
    return found


def _as_yaml(text: str) -> str:
    """Return an argument of Python as a field of YAML."""
    found = _ARGUMENT.match(text)
    assert found is not None
    return f"{found[1]}: {json.dumps(_value(found[2]))}"


def _value(text: str) -> Any:
    """Return a value that Python prints; a text where it is none of its literals."""
    text = text.strip().removesuffix(",")
    if len(text) > MOST_OF_VALUE:
        return text[:MOST_OF_VALUE]
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text.strip(QUOTES)
    return value


QUOTES = "'\""

MOST_OF_VALUE = 10_000
"""Most characters of an argument that are read as a literal."""


def _dictionaries(text: str) -> Iterator[dict[str, float]]:
    """Yield the numbers of the dictionaries in a line."""
    if not any(word in text for word in ("loss'", 'loss"', "train_runtime")):
        return
    for found in _DICT.finditer(text):
        numbers = ((entry[1], number(entry[2])) for entry in _ENTRY.finditer(found[0]))
        entries = {
            key: value
            for key, value in numbers
            if value is not None and abs(value) < MOST_VALUE
        }
        if "loss" in entries or "epoch" in entries or "train_runtime" in entries:
            yield entries


def _keep_entries(reading: LogReading, history: list[dict[str, float]]) -> None:
    """Keep peaks and throughput of a history; throughput as the run's last word."""
    for entries in history:
        for key, (kind, unit_gib) in _MEMORY.items():
            if (value := entries.get(key)) is not None:
                reading.keep_peak(None, **{kind: value * unit_gib})
        for key in _SPEED:
            if (value := entries.get(key)) and reading.steps.samples:
                for sample in reading.steps.samples:
                    sample.values["tokens_per_s"] = value


def _keep_mean(
    reading: LogReading, history: list[dict[str, float]], total: int
) -> None:
    """Keep the mean time of a step, from the run time less evaluations."""
    evaluated = math.fsum(entry.get("eval_runtime", 0.0) for entry in history)
    end = next((entry for entry in history if "train_runtime" in entry), None)
    if end is None:
        return
    run_s, speed = end["train_runtime"], end.get("train_steps_per_second") or 0.0
    steps = total or int(end.get("step", 0)) or round(run_s * speed)
    if steps > 0 and run_s > evaluated:
        line = LogLine(1, "")
        times = StepTimes()
        times.add(line, steps, (run_s - evaluated) / steps, steps)
        reading.steps = times
        reading.notes.append(
            f"{reading.name}: the time of a step is the mean of the run, {run_s:g} s "
            f"less {evaluated:g} s of evaluations over {steps} steps: warm-up and "
            "checkpoints are in it"
        )


SIGN_OF_STATE = 4_000
"""Characters of a file in which it looks like `trainer_state.json`."""

_STATE = re.compile(
    r"\ufeff?\s{0,9}\{(?=[\s\S]{0,4000}?\"(?:best_metric|log_history|epoch|global_step)\")"
)


def _state(reading: LogReading) -> Launch:
    """Read `trainer_state.json`.

    Raises:
        SpecError: it is not JSON, or has no history.
    """
    try:
        data: Any = json.loads(reading.text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        fail(reading.name, 0, f"not valid JSON: {str(error)[:80]}")
    history = mapping(data).get("log_history")
    if not isinstance(history, list) or len(history) > MOST_ENTRIES:
        fail(reading.name, 0, "expected a list log_history, of at most 500,000 entries")
    rows = [
        {
            str(key)[:60]: float(value)
            for key, value in row.items()
            if isinstance(value, int | float) and abs(value) < MOST_VALUE
        }
        for row in mappings(history)
    ]
    reading.lines = []
    _keep_mean(reading, rows, 0)
    _keep_entries(reading, rows)
    launch = reading.new_launch()
    size = data.get("train_batch_size")
    if isinstance(size, int) and 0 < size < 10**7:
        name, where = "train_batch_size", Where(reading.name)
        launch.set("micro_batch", size, Setting(name, size, where, name))
    return launch


IMPORTERS = importers(
    LogKind(
        "hf_trainer_log",
        "Hugging Face Trainer",
        r"\{['\"](?:loss|train_runtime|eval_loss)['\"]: |\"log_history\": ?\["
        r"|\[INFO:swift\][ ]args: "
        r"|\*\*\*\*\* Running training \*\*\*\*\*|['\"]train_runtime['\"]: "
        r"|Gradient Accumulation steps = |\bPeak reserved memory = "
        r"|Training/evaluation parameters "
        r"|/(?:transformers|trl|axolotl)/[\w/]{0,80}train",
        _read,
    )
)
