"""Measurements in rows: CSV that W&B exports, lines of JSON, and `nvidia-smi dmon`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from meshwright.imports.launches.launch import Launch
from meshwright.imports.logs.log_text import LogLine, number
from meshwright.imports.logs.progress import WINDOW_S
from meshwright.imports.logs.run_log import LogKind, LogReading, importers
from meshwright.imports.logs.training_log import PartOf
from meshwright.imports.text import data_in, fail, mapping
from meshwright.spec.units import GIB

MOST_ROWS = 500_000
"""Most rows of a table."""

MOST_COLUMNS = 2_000
"""Most columns of a table."""

PARTS: dict[str, PartOf] = {
    "data_loading(s)": "input",
    "train_backward_timing in s": "other",
}
"""Ends of columns with seconds of a part of the step."""


class Column(NamedTuple):
    """The meaning of a column; of `kind` "" nothing is read."""

    kind: str
    of: str = ""
    unit: float = 1.0


OTHER = Column("")

_MEANINGS = [
    (re.compile(pattern, re.IGNORECASE), column)
    for pattern, column in (
        (r".*(?:__MIN|__MAX)", OTHER),
        (
            r"(?:.* - )?(?:_step|step|global_step|trainer/global_step|train/global_step"
            r"|iteration|training/step|current_steps)",
            Column("step"),
        ),
        (
            r"(?:.*[ /])?(?:train_step_timing in s|step_time(?:_s|_sec|_seconds)?"
            r"|time_per_step|step_duration|end_to_end\(s\)|iter_time|step_time \(s\)"
            r"|timing_s/step|iteration-time)",
            Column("time"),
        ),
        (
            r"(?:.*[ /])?(?:step_time_ms|iter_time_ms|time_per_step_ms"
            r"|elapsed_time_per_iteration_ms)",
            Column("time", unit=1e-3),
        ),
        # A clock in seconds counts where no column has the time of a step.
        (
            r"(?:.* - )?(?:_runtime|_timestamp|timestamp|relative time.*)",
            Column("clock"),
        ),
        (
            r"(?:.*[ /])?(?:throughput\(tps\)|tps|tokens_per_sec(?:ond)?_per_gpu"
            r"|tokens/train_per_sec_per_gpu|tokens_per_s_per_gpu)",
            Column("value", "tokens_per_s"),
        ),
        (
            r"(?:.*[ /])?(?:tflops|TFLOPS_per_GPU|tflops_per_gpu)",
            Column("value", "tflops"),
        ),
        (r"(?:.*[ /])?(?:global_batch_size|batch-size)", Column("value", "batch")),
        (r".*max_alloc(?:ated)?[ _]?\(GiB\)", Column("peak", "allocated")),
        (
            r".*(?:max|device)_reserved[ _]?\(GiB\)|memory\(GiB\)",
            Column("peak", "reserved"),
        ),
        (r".*max_memory_allocated", Column("peak", "allocated", 1 / GIB)),
        (r".*max_memory_reserved", Column("peak", "reserved", 1 / GIB)),
        (r".*gpu\.\d{1,3}\.memoryAllocatedBytes", Column("peak", "device", 1 / GIB)),
        *((rf".*{re.escape(end)}", Column("part", end)) for end in PARTS),
        (
            r"(?:.*[ /])?(?:val_loss|eval[_/]loss|validation_metrics/.*)",
            Column("event"),
        ),
    )
]
"""Columns by their names, the first pattern that fits; GiB are the unit of peaks."""


def _meaning(name: str) -> Column:
    found = (column for pattern, column in _MEANINGS if pattern.fullmatch(name))
    return next(found, OTHER)


_GPU = re.compile(r"gpu\.(\d{1,3})\.")


def _read_csv(reading: LogReading) -> Launch:
    """Read a table in CSV.

    Raises:
        SpecError: it is none, or has too many rows or columns.
    """
    lines = (line.text for line in reading.lines)
    try:
        rows = csv.reader(lines)
        head = [column.strip() for column in next(rows, [])]
        if len(head) > MOST_COLUMNS:
            fail(reading.name, 1, f"expected at most {MOST_COLUMNS:,} columns")
        numbers = (dict(zip(head, row, strict=False)) for row in rows)
        _read_rows(reading, numbers)
    except csv.Error as error:
        fail(reading.name, 0, f"not valid CSV: {error}")
    return reading.new_launch()


def _read_json_lines(reading: LogReading) -> Launch:
    _read_rows(reading, _json_rows(reading.lines))
    return reading.new_launch()


def _json_rows(lines: list[LogLine]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each line that is JSON, those of inner objects too."""
    for line in lines:
        text = line.text.strip().removeprefix("DLLL ")
        if not (text.startswith("{") and text.endswith("}")):
            continue
        row = mapping(data_in(text))
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


class Row(NamedTuple):
    """The numbers of a row: those of its step, other values, and parts of the step."""

    found: dict[str, float]
    values: dict[str, float]
    parts: dict[str, float]


def _read_row(
    reading: LogReading, row: Mapping[str, Any], columns: dict[str, Column]
) -> Row:
    """Return the numbers of a row; keep its peaks, and note an evaluation."""
    told = Row({}, {}, {})
    for name, text in row.items():
        if name not in columns and len(columns) <= MOST_COLUMNS:
            columns[name] = _meaning(str(name)[:200])
        kind, of, unit = columns.get(name, OTHER)
        value = number(str(text)) if kind else None
        if value is None:
            continue
        if kind == "peak":
            gpu = _GPU.search(str(name))
            reading.keep_peak(int(gpu[1]) if gpu else None, **{of: value * unit})
        elif kind == "event":
            reading.steps.happened("evaluation")
        elif kind in ("part", "value"):
            (told.parts if kind == "part" else told.values)[of] = value
        else:
            told.found.setdefault(kind, value * unit)
    return told


def _read_rows(reading: LogReading, rows: Iterator[dict[str, Any]]) -> None:
    """Read the times and peaks of all rows."""
    columns, steps = dict[str, Column](), reading.steps
    before: tuple[float, float] | None = None
    interval = 1
    for count, row in enumerate(rows):
        if count >= MOST_ROWS:
            fail(reading.name, count + 2, f"expected at most {MOST_ROWS:,} rows")
        found, values, parts = _read_row(reading, row, columns)
        step, clock = found.get("step", float(count)), found.get("clock")
        if not abs(step) < 1e12:
            continue
        line = LogLine(count + 2, "")
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


_HEAD = re.compile(
    r"[ ]{0,8}#?[ ]{0,8}(?:Date[ ]{1,20}|Time[ ]{1,20}){0,2}gpu[ ]{1,20}\w"
)


def _read_dmon(reading: LogReading) -> Launch:
    """Read the most memory in use on each GPU, and their load, of `dmon`."""
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
            f"{reading.name}: the GPUs were busy {busy[len(busy) // 2]:g} % of the "
            "time, the median of samples above 0"
        )
    return reading.new_launch()


IMPORTERS = importers(
    LogKind(
        "wandb_csv",
        "W&B",
        r"\A\ufeff?(?=[^\n]{0,20000},)(?=[^\n]{0,20000}\"?(?:[^\n\",]{0,200} - )?"
        r"(?:_step|[Ss]tep|global_step|trainer/global_step|_runtime)\"?[,\r\n])"
        r"[\w\"][^\n{}|=]{0,20000}\r?\n",
        _read_csv,
        PARTS,
    ),
    LogKind(
        "json_lines",
        "lines of JSON",
        r"(?m)^(?:DLLL )?\{(?=[ ]?\")[^\n]{0,2000}?"
        r"(?:train_step_timing in s|step_time|end_to_end\(s\)|tokens_per_sec"
        r"|\"current_steps\": \d|\"global_step/max_steps\": )",
        _read_json_lines,
        PARTS,
    ),
    LogKind(
        "nvidia_smi_dmon",
        "nvidia-smi dmon",
        r"(?m)^[ ]{0,4}#[ ]?(?:Date[ ]{1,20}|Time[ ]{1,20}){0,2}gpu[ ]{1,20}"
        r"[a-z][^\n]{0,200}\b(?:fb|sm)\b",
        _read_dmon,
    ),
)
