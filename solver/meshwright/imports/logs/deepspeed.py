"""Logs of DeepSpeed: its configuration, timers, throughput and flops profiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.imports.launches.deepspeed import read_plan
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.settings import Setting, Settings
from meshwright.imports.logs.log_text import LogLine, StepTimes, compiled, number
from meshwright.imports.logs.megatron import (
    arguments,
    dumped,
    keep_memory,
    keep_step,
)
from meshwright.imports.logs.progress import ProgressBars
from meshwright.imports.logs.run_log import (
    LogKind,
    LogReading,
    importers,
    json_settings,
)
from meshwright.imports.logs.training_log import PartOf

_JSON = re.compile(r"\bjson = (\{.{0,20000})")

_PRINTED = re.compile(
    r"config\.py:\d{1,5}:print\w{0,20}\][ ]{1,6}(\w{1,60})[ ]\.{0,60}[ ]{1,2}"
    r"(.{1,4000})"
)
"""A field of the engine's configuration; some have no dots."""

_STAGE = re.compile(r"\bstage=(\d)\b")

_SPEED = re.compile(
    r"(?:global_step=|\b0/)(\d{1,12}), RunningAvgSamplesPerSec=([\d.]{1,24}), "
    r"CurrSamplesPerSec=([\d.]{1,24})"
)
_MOST_ALLOCATED = re.compile(r"\bMaxMemAllocated=([\d.]{1,20})GB")
_USAGE = re.compile(
    r"\bMax_MA ([\d.]{1,20}) GB[ ]{1,20}CA [\d.]{1,20} GB[ ]{1,20}Max_CA ([\d.]{1,20})"
)
"""Peaks in GiB, which DeepSpeed calls GB."""

_STEP = re.compile(r"\bstep=(\d{1,12}), skipped=")

_TIMERS = re.compile(r"time \(ms\)((?: \| \w{1,60}: [\d.]{1,20}){1,40})")
_TIMER = re.compile(r"(\w{1,60}): ([\d.]{1,20})")

TIMERS: dict[str, PartOf] = {
    "fwd": "forward",
    "bwd": "backward",
    "bwd_allreduce": "gradient reduction",
    "step": "optimizer",
    "optimizer_allgather": "parameter gather",
    "fwd latency": "forward",
    "bwd latency": "backward",
    "step latency": "optimizer",
}
"""The parts of a step by timer; `bwd` has `bwd_allreduce` in it, the rest are inner."""

_LATENCY = re.compile(
    r"\b((?:fwd|bwd|step|iter) latency)[^:]{0,60}:[ ]{1,80}([\d.]{1,20})[ ](us|ms|s)\b"
)
_PROFILED = compiled(
    {
        "world_size": r"\bworld size:[ ]{1,80}(\d{1,7})",
        "train_micro_batch_size_per_gpu": r"\b(?:train micro-)?batch size per GPU:"
        r"[ ]{1,80}(\d{1,7})",
    }
)
"""Lines of the flops profiler that have a number of the configuration."""

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass
class _Sources:
    """Times of the same steps, by what in the log has them; the first counts."""

    iterations: StepTimes
    speed: StepTimes
    clock: StepTimes
    timers: StepTimes
    profile: StepTimes


def _read(reading: LogReading) -> Launch:
    """Read a log, and return its launch.

    The time of a step is taken from Megatron-DeepSpeed's lines, else samples per
    second, a progress bar, the clock of lines with `step=`, the timers, or the flops
    profiler: the first that the log has.
    """
    launch = _launch([*_settings(reading)], reading)
    _read_steps(reading, launch)
    return launch


def _settings(reading: LogReading) -> Iterator[Setting]:
    """Yield the settings of the configuration, each once; JSON has them all."""
    printed: dict[str, Setting] = {}
    found: list[Setting] = []
    for index, line in enumerate(reading.lines):
        text, where = line.text, line.where
        if "json = {" in text and (start := _JSON.search(text)):
            rows = reading.until_closed(index, start[1])
            found = [*json_settings(rows)] or found
        elif "config.py" in text and (pair := _PRINTED.search(text)):
            printed[pair[1]] = Setting(pair[1], pair[2].strip(), where, pair[1])
        elif "Creating BF16 optimizer" in text:
            printed["sums"] = Setting(_SUMS, "fp32", where, "Creating BF16 optimizer")
        elif "size" in text:
            for key, pattern in _PROFILED.items():
                if match := pattern.search(text):
                    printed.setdefault(key, Setting(key, match[1], where, key))
    given = {setting.name: setting for setting in found}
    yield from (given | {k: printed[k] for k in _COUNTS if k in printed}).values()

    def is_told(*names: str) -> bool:
        return any(name.startswith(names) for name in given)

    stage = printed.get("zero_config")
    match = _STAGE.search(str(stage.value)) if stage else None
    if stage and match and not is_told("zero_optimization"):
        yield Setting("zero_optimization.stage", match[1], stage.where, "zero_config")
    types = ("bfloat16_enabled", "bfloat16_config", "fp16_enabled")
    on = [printed[key] for key in types if key in printed]
    on = [setting for setting in on if "True" in str(setting.value)]
    if on and not is_told("bf16", "bfloat16", "fp16"):
        name = "fp16.enabled" if on[0].name == "fp16_enabled" else "bf16.enabled"
        yield Setting(name, True, on[0].where, on[0].name)
    if "sums" in printed and _SUMS not in given:
        yield printed["sums"]
    if not found and stage is None:
        yield from _of_arguments(reading)


_SUMS = "data_types.grad_accum_dtype"

_ENGINE = {
    "zero_stage": "zero_optimization.stage",
    "bf16": "bf16.enabled",
    "fp16": "fp16.enabled",
}
"""Arguments of Megatron-DeepSpeed, and the fields of the configuration they go into."""


def _of_arguments(reading: LogReading) -> Iterator[Setting]:
    """Yield what Megatron-DeepSpeed's arguments say of a configuration not printed."""
    given = dumped(reading)
    for key, name in _ENGINE.items():
        if (setting := given.get(key)) is not None and setting.value != "False":
            value = True if setting.value == "True" else setting.value
            yield Setting(name, value, setting.where, setting.written)
    host = given.get("cpu_optimizer")
    if host is not None and host.value == "True":
        name = "zero_optimization.offload_optimizer.device"
        yield Setting(name, "cpu", host.where, host.written)


_COUNTS = (
    "train_batch_size", "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps", "world_size",
)  # fmt: skip
"""Numbers that the engine has worked out where a configuration says `auto`."""


def _launch(settings: list[Setting], reading: LogReading) -> Launch:
    def read(kept: list[Setting]) -> Launch:
        launch = reading.new_launch("deepspeed")
        plain = [setting for setting in kept if setting.name != "world_size"]
        gpus = Settings(setting for setting in kept if setting.name == "world_size")
        if plain:
            read_plan(Settings(plain), launch)
            launch.idle.clear()
        launch.put("gpus", gpus.count("world_size"))
        said = arguments(reading)
        if "gpus" in said:  # The engine counts data-parallel ranks alone.
            launch.values["gpus"] = said["gpus"]
        for field, value in said.items():
            if field not in launch.values:
                launch.values[field] = value
        return launch

    return reading.launch(read, settings)


def _read_steps(reading: LogReading, launch: Launch) -> None:
    """Read all times of steps, and keep those of the best source."""
    sources = _Sources(*(StepTimes() for _ in range(5)))
    bars = ProgressBars()
    batch = launch.value("training.global_batch")
    clock: tuple[int, float] | None = None
    for line in reading.lines:
        text = line.text
        if keep_step(sources.iterations, line) or keep_memory(reading, text):
            continue
        if "SamplesPerSec" in text and (found := _SPEED.search(text)):
            _keep_speed(sources.speed, line, found, batch)
        if "time (ms)" in text and (timers := _TIMERS.search(text)):
            _keep_timers(sources, line, timers[1])
        elif "step=" in text and (timed := _STEP.search(text)):
            clock = _keep_clock(sources.clock, line, int(timed[1]), clock)
        elif "latency" in text and (timed := _LATENCY.search(text)):
            seconds = (number(timed[2]) or 0.0) * _SECONDS[timed[3]]
            if timed[1] == "iter latency":
                sources.profile.add(line, 1, seconds)
            else:
                sources.profile.pending[timed[1]] = seconds
        elif "saving" in text.lower() and "checkpoint" in text.lower():
            for own_steps in vars(sources).values():
                own_steps.happened("checkpoint")
            bars.happened("checkpoint")
        else:
            bars.read(line)
        has_run = any(steps.samples for steps in vars(sources).values())
        _keep_peaks(reading, line, has_run)
    ranked = [sources.iterations, sources.speed, bars.steps, sources.clock]
    ranked += [sources.timers, sources.profile]
    best = next((steps for steps in ranked if steps.samples), sources.iterations)
    reading.steps = best


def _keep_speed(
    steps: StepTimes, line: LogLine, found: re.Match[str], batch: int | None
) -> None:
    """Keep the time that follows from samples per second."""
    speed = number(found[3])
    if batch and speed:
        step = int(found[1])
        last = steps.samples[-1].step if steps.samples else step - 1
        steps.add(line, step, batch / speed, max(step - last, 1))


def _keep_clock(
    steps: StepTimes, line: LogLine, step: int, before: tuple[int, float] | None
) -> tuple[int, float] | None:
    """Keep the time between two lines with `step=`, by their clock."""
    if line.time_s is None:
        return before
    if before is not None and step > before[0]:
        count = step - before[0]
        steps.add(line, step, (line.time_s - before[1]) / count, count)
    return step, line.time_s


def _keep_timers(sources: _Sources, line: LogLine, text: str) -> None:
    """Keep the timers of a step: those of all its micro-batches have short names."""
    told = ((timer[1], number(timer[2])) for timer in _TIMER.finditer(text))
    found = {name: ms / 1e3 for name, ms in told if ms is not None}
    times = vars(sources).values()
    if "fwd" not in found or "step" not in found:
        for steps in times:
            steps.pending |= {
                key: seconds for key, seconds in found.items() if "microstep" not in key
            }
        return
    last = sources.timers.samples[-1].step if sources.timers.samples else 0
    whole = found["fwd"] + found.get("bwd", 0.0) + found["step"]
    sources.timers.add(line, last + 1, whole)
    for steps in times:
        for key, seconds in found.items():
            if steps is sources.iterations:
                steps.pending[key] = seconds
            else:
                steps.add_part(key, seconds)


def _keep_peaks(reading: LogReading, line: LogLine, has_run: bool) -> None:
    """Keep peaks; reports of memory before the first step are not those of a run."""
    if "MaxMemAllocated" in line.text:
        if found := _MOST_ALLOCATED.search(line.text):
            reading.keep_peak(line.rank, allocated=number(found[1]))
    elif has_run and "Max_MA" in line.text and (found := _USAGE.search(line.text)):
        allocated, reserved = number(found[1]), number(found[2])
        reading.keep_peak(line.rank, allocated=allocated, reserved=reserved)


IMPORTERS = importers(
    LogKind(
        "deepspeed_log",
        "DeepSpeed",
        r"DeepSpeedEngine configuration|RunningAvgSamplesPerSec="
        r"|DeepSpeed Flops Profiler|\|[ ]bwd_inner_microstep:"
        r"|\[Rank 0\] step=\d{1,12}, skipped=|[ ]deepspeed[ ]\.{10,80}[ ]True\b",
        _read,
        TIMERS,
    )
)
