"""Measurements in rows: CSV that W&B exports, lines of JSON, and `nvidia-smi dmon`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.imports.launches.launch import Launch
from meshwright.imports.logs.log_text import LogLine, number
from meshwright.imports.logs.progress import WINDOW_S
from meshwright.imports.logs.run_log import LogReading
from meshwright.imports.logs.training_log import PartOf, TrainingLog
from meshwright.imports.registry import TrainingLogImporter
from meshwright.imports.text import fail

MOST_ROWS = 500_000
"""Most rows of a table."""

MOST_COLUMNS = 2_000
"""Most columns of a table."""

STEPS = re.compile(
    r"(?:.* - )?(?:_step|step|global_step|trainer/global_step|train/global_step"
    r"|iteration|training/step|current_steps)",
    re.IGNORECASE,
)
TIMES = (
    (
        1.0,
        re.compile(
            r"(?:.*[ /])?(?:train_step_timing in s|step_time(?:_s|_sec|_seconds)?"
            r"|time_per_step|step_duration|end_to_end\(s\)|iter_time|step_time \(s\)"
            r"|timing_s/step)",
            re.IGNORECASE,
        ),
    ),
    (
        1e-3,
        re.compile(
            r"(?:.*[ /])?(?:step_time_ms|iter_time_ms|time_per_step_ms"
            r"|elapsed_time_per_iteration_ms)",
            re.IGNORECASE,
        ),
    ),
    (1.0, re.compile(r"(?:.*[ /])?iteration-time", re.IGNORECASE)),
)
"""Columns with the time of a step, and the seconds of their unit."""

CLOCKS = re.compile(
    r"(?:.* - )?(?:_runtime|_timestamp|timestamp|relative time.*)", re.I
)
"""Columns with a clock in seconds, used where no column has the time of a step."""

VALUES = {
    "tokens_per_s": re.compile(
        r"(?:.*[ /])?(?:throughput\(tps\)|tps|tokens_per_sec(?:ond)?_per_gpu"
        r"|tokens/train_per_sec_per_gpu|tokens_per_s_per_gpu)",
        re.IGNORECASE,
    ),
    "tflops": re.compile(
        r"(?:.*[ /])?(?:tflops|TFLOPS_per_GPU|tflops_per_gpu)", re.IGNORECASE
    ),
    "batch": re.compile(r"(?:.*[ /])?(?:global_batch_size|batch-size)", re.IGNORECASE),
}

PEAKS = (
    ("allocated", 1.0, re.compile(r".*max_alloc(?:ated)?[ _]?\(GiB\)", re.IGNORECASE)),
    (
        "reserved",
        1.0,
        re.compile(r".*(?:max|device)_reserved[ _]?\(GiB\)|memory\(GiB\)", re.I),
    ),
    ("allocated", 2.0**-30, re.compile(r".*max_memory_allocated", re.IGNORECASE)),
    ("reserved", 2.0**-30, re.compile(r".*max_memory_reserved", re.IGNORECASE)),
    (
        "device",
        2.0**-30,
        re.compile(r".*gpu\.\d{1,3}\.memoryAllocatedBytes", re.IGNORECASE),
    ),
)
"""Columns with a peak, what it is of, and the GiB of their unit."""

PARTS: dict[str, PartOf] = {
    "data_loading(s)": "input",
    "train_backward_timing in s": "other",
}
"""Ends of columns with seconds of a part of the step."""

_GPU = re.compile(r"gpu\.(\d{1,3})\.")

EVENTS = re.compile(r"(?:.*[ /])?(?:val_loss|eval[_/]loss|validation_metrics/.*)", re.I)


def parse_csv(text: str, name: str) -> TrainingLog:
    """Return what a table in CSV tells.

    Raises:
        SpecError: it has too many rows or columns, or tells nothing of a run.
    """
    reading = LogReading(text, name)
    lines = (line.text for line in reading.lines)
    try:
        rows = csv.reader(lines)
        head = [column.strip() for column in next(rows, [])]
        if len(head) > MOST_COLUMNS:
            fail(name, 1, f"expected at most {MOST_COLUMNS:,} columns")
        numbers = (dict(zip(head, row, strict=False)) for row in rows)
        _read_rows(reading, numbers)
    except csv.Error as error:
        fail(name, 0, f"not valid CSV: {error}")
    launch = Launch("wandb_csv", "W&B", "", name)
    return reading.log("wandb_csv", "W&B", launch, PARTS)


def parse_json_lines(text: str, name: str) -> TrainingLog:
    """Return what lines of JSON tell.

    Raises:
        SpecError: the text is too long, or tells nothing of a run.
    """
    reading = LogReading(text, name)
    _read_rows(reading, _json_rows(reading.lines))
    launch = Launch("json_lines", "lines of JSON", "", name)
    return reading.log("json_lines", "lines of JSON", launch, PARTS)


def _json_rows(lines: list[LogLine]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each line that is JSON, those of inner objects too."""
    for line in lines:
        text = line.text.strip().removeprefix("DLLL ")
        if not (text.startswith("{") and text.endswith("}")):
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            continue
        inner = [value for value in row.values() if isinstance(value, dict)]
        yield _of_trainers(row) | {
            str(key): value
            for fields in (row, *inner)
            for key, value in fields.items()
            if not isinstance(value, dict | list)
        }


_DAYS = re.compile(r"(?:(\d{1,5}) days?, )?(\d{1,6}):(\d\d):(\d\d)")
_HOURS = re.compile(r"(?:(\d{1,5})d ?)?(?:(\d{1,6})h ?)?(?:(\d{1,4})m ?)?(\d{1,6})s")
"""Clocks of LLaMA-Factory and of ms-swift, in whole seconds: steps are averaged."""


def _of_trainers(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the clock and the step that LLaMA-Factory and ms-swift write as texts."""
    found: dict[str, Any] = {}
    clock = str(row.get("elapsed_time", ""))[:40]
    if told := _DAYS.fullmatch(clock) or _HOURS.fullmatch(clock):
        days, hours, minutes, seconds = (int(part or 0) for part in told.groups())
        found["_runtime"] = ((24 * days + hours) * 60 + minutes) * 60 + seconds
    done, _, most = str(row.get("global_step/max_steps", ""))[:40].partition("/")
    if most:
        found["_step"] = done
    return found


class _Columns:
    """The meaning of each column, worked out when its name is first met."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str, float]] = {}

    def of(self, name: str) -> tuple[str, str, float]:
        """Return what a column holds, of what, and the unit; "" for other columns."""
        if name not in self._found:
            if len(self._found) > MOST_COLUMNS:
                return "", "", 1.0
            self._found[name] = _told(name[:200])
        return self._found[name]


def _told(name: str) -> tuple[str, str, float]:
    if name.endswith(("__MIN", "__MAX")):
        return "", "", 1.0
    if STEPS.fullmatch(name):
        return "step", "", 1.0
    for unit, pattern in TIMES:
        if pattern.fullmatch(name):
            return "time", "", unit
    if CLOCKS.fullmatch(name):
        return "clock", "", 1.0
    for key, pattern in VALUES.items():
        if pattern.fullmatch(name):
            return "value", key, 1.0
    for kind, unit, pattern in PEAKS:
        if pattern.fullmatch(name):
            return "peak", kind, unit
    part = next((word for word in PARTS if name.endswith(word)), "")
    if part:
        return "part", part, 1.0
    return ("event", "", 1.0) if EVENTS.fullmatch(name) else ("", "", 1.0)


def _read_rows(reading: LogReading, rows: Iterator[dict[str, Any]]) -> None:
    """Read the times and peaks of all rows."""
    columns, steps = _Columns(), reading.steps
    before: tuple[float, float] | None = None
    interval = 1
    for count, row in enumerate(rows):
        if count >= MOST_ROWS:
            fail(reading.name, count + 2, f"expected at most {MOST_ROWS:,} rows")
        found: dict[str, float] = {}
        values: dict[str, float] = {}
        parts: dict[str, float] = {}
        for column, text in row.items():
            kind, of, unit = columns.of(str(column))
            value = number(str(text)) if kind else None
            if value is None:
                continue
            if kind == "peak":
                _keep_peak(reading, str(column), of, value * unit)
            elif kind == "part":
                parts[of] = value
            elif kind == "value":
                values[of] = value
            elif kind == "event":
                steps.happened("evaluation")
            else:
                found.setdefault(kind, value * unit)
        step = found.get("step", float(count))
        if not abs(step) < 1e12:
            continue
        line = LogLine(count + 2, "")
        clock = found.get("clock")
        last = steps.samples[-1] if steps.samples else None
        if last is not None and 0 < step - last.step <= 10_000:
            interval = int(step) - last.step
        if "time" in found:
            steps.add(line, int(step), found["time"], interval, values)
        elif clock is not None and before is not None and step > before[0]:
            done, seconds = int(step - before[0]), clock - before[1]
            if 0 < seconds < WINDOW_S and "elapsed_time" in row:
                continue
            if done and seconds > 0:
                steps.add(line, int(step), seconds / done, done, values)
        elif steps.samples and values:
            steps.samples[-1].values |= values
        if clock is not None and (before is None or step != before[0]):
            before = (step, clock)
        for part, seconds in parts.items():
            steps.add_part(part, seconds)


def _keep_peak(reading: LogReading, column: str, of: str, gib: float) -> None:
    found = _GPU.search(column)
    rank = int(found[1]) if found else None
    kinds: Mapping[str, float] = {of: gib}
    reading.keep_peak(
        rank, kinds.get("allocated"), kinds.get("reserved"), kinds.get("device")
    )


_HEAD = re.compile(
    r"[ ]{0,8}#?[ ]{0,8}(?:Date[ ]{1,20}|Time[ ]{1,20}){0,2}gpu[ ]{1,20}\w"
)


def parse_dmon(text: str, name: str) -> TrainingLog:
    """Return the most memory in use on each GPU, and its mean load, of `dmon`.

    Raises:
        SpecError: the text is too long, or has no column of memory in use.
    """
    reading = LogReading(text, name)
    head: list[str] = []
    loads: list[float] = []
    for line in reading.lines:
        words = line.text.replace("#", " ").split()
        if _HEAD.match(line.text):
            head = [column.lower() for column in words]
        elif head and "#" not in line.text and len(words) == len(head):
            row = dict(zip(head, words, strict=True))
            gpu, used, load = (
                number(row.get(column, "")) for column in ("gpu", "fb", "sm")
            )
            loads += [] if load is None else [load]
            if gpu is not None and 0 <= gpu < 1_000 and used is not None:
                reading.keep_peak(int(gpu), device=used / 1024)
    busy = sorted(load for load in loads if load > 0)
    if busy:
        reading.notes.append(
            f"{name}: the GPUs were busy {busy[len(busy) // 2]:g} % of the time, the "
            "median of samples above 0"
        )
    launch = Launch("nvidia_smi_dmon", "nvidia-smi dmon", "", name)
    return reading.log("nvidia_smi_dmon", "nvidia-smi dmon", launch)


IMPORTERS = {
    "wandb_csv": TrainingLogImporter(
        sign=r"\A\ufeff?(?=[^\n]{0,20000},)(?=[^\n]{0,20000}\"?(?:[^\n\",]{0,200} - )?"
        r"(?:_step|[Ss]tep|global_step|trainer/global_step|_runtime)\"?[,\r\n])"
        r"[\w\"][^\n{}|=]{0,20000}\r?\n",
        parse=parse_csv,
    ),
    "json_lines": TrainingLogImporter(
        sign=r"(?m)^(?:DLLL )?\{(?=[ ]?\")[^\n]{0,2000}?"
        r"(?:train_step_timing in s|step_time|end_to_end\(s\)|tokens_per_sec"
        r"|\"current_steps\": \d|\"global_step/max_steps\": )",
        parse=parse_json_lines,
    ),
    "nvidia_smi_dmon": TrainingLogImporter(
        sign=r"(?m)^[ ]{0,4}#[ ]?(?:Date[ ]{1,20}|Time[ ]{1,20}){0,2}gpu[ ]{1,20}"
        r"[a-z][^\n]{0,200}\b(?:fb|sm)\b",
        parse=parse_dmon,
    ),
}
