"""The JSON of nccl-tests (`-J FILE`) and of rccl-tests, as the table printed beside it.

nccl-tests writes one object: `args`, `config.devices`, `results` with both timings of a
size. rccl-tests writes a list of rows, one for each size and placement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.nccl.tests_rows import TYPE_BYTES

SIGN = (
    r"\"args\"\s{0,9}:\s{0,9}\[\s{0,9}\"[^\"]{0,400}_perf|\"(?:alg_bw|algBw)\"\s{0,9}:"
)
"""What the start of either form has."""

HEADING = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"

_SPLIT = ("gather", "scatter", "alltoall")
"""Parts of names of tests whose buffer holds a part for each rank."""


def as_table(text: str, name: str) -> str:
    """Return the text itself, or the table of rows that its JSON describes.

    Raises:
        SpecError: the JSON has no results of nccl-tests or rccl-tests.
    """
    if not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return text
    try:
        data = json.loads(text.lstrip("\ufeff"), parse_int=_number)
    except (ValueError, RecursionError):
        return text  # a log may start with a bracket too
    if isinstance(data, dict) and isinstance(data.get("results"), list):
        return "\n".join(_of_nccl_tests(data))
    rows = data if isinstance(data, list) else [data]
    if rows and all(isinstance(row, dict) and "algBw" in row for row in rows):
        return "\n".join(_of_rccl_tests(rows))
    raise SpecError(f"{name}: JSON without results; expected that of nccl-tests -J")


def _number(digits: str) -> int:
    """Return a whole number; one of absurd length is no size."""
    return int(digits) if len(digits) <= 20 else -1


def _of_nccl_tests(data: Mapping[str, Any]) -> Iterator[str]:
    program = next(iter(_items(data.get("args"))), "")
    yield f"# Collective test starting: {str(program).rpartition('/')[2]}"
    config = data.get("config")
    for device in _items(config.get("devices") if isinstance(config, dict) else None):
        if isinstance(device, dict):
            yield _device(device)
    yield HEADING
    for row in _items(data.get("results")):
        if isinstance(row, dict):
            yield _row(
                row, _timing(row.get("out_of_place")), _timing(row.get("in_place"))
            )
    average = data.get("average_bus_bandwidth")
    if isinstance(average, dict) and isinstance(average.get("bandwidth"), int | float):
        yield f"# Avg bus bandwidth : {average['bandwidth']}"


def _device(device: Mapping[str, Any]) -> str:
    rank, group, pid, host, number = (
        _word(device.get(key)) for key in ("rank", "group", "pid", "hostname", "device")
    )
    info = " ".join(str(device.get("device_info") or "").split())[:200]
    return f"# Rank {rank} Group {group} Pid {pid} on {host} device {number} [0] {info}"


def _row(row: Mapping[str, Any], out_of_place: str, in_place: str) -> str:
    size, count, dtype, redop, root = (
        _word(row.get(key)) for key in ("size", "count", "type", "redop", "root")
    )
    head = f"{size} {count} {dtype} {redop or 'none'} {root or '-1'}"
    return f"{head} {out_of_place} {in_place}"


def _timing(timing: Any) -> str:
    """Return time, algorithm and bus bandwidth and errors, N/A where there are none."""
    if not isinstance(timing, dict):
        return "N/A N/A N/A N/A"
    keys = ("time" if "time" in timing else "cpu_time", "alg_bw", "bus_bw")
    return " ".join(_word(timing.get(key)) or "N/A" for key in keys) + " N/A"


def _of_rccl_tests(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line for each size: rows of both placements belong to it."""
    title = None
    sizes: dict[tuple[str, ...], dict[bool, str]] = {}
    for row in rows:
        ranks = next((row[key] for key in ("ranks", "gpus") if row.get(key)), 1)
        test = _word(row.get("name"))
        timing = " ".join(_word(row.get(key)) for key in ("time", "algBw", "busBw"))
        key = (test, _word(row.get("size")), _count(row, test, ranks), *(
            _word(row.get(field)) for field in ("type", "redop")
        ))  # fmt: skip
        sizes.setdefault(key, {})[str(row.get("inPlace")) == "1"] = f"{timing} N/A"
    for (test, size, count, dtype, redop), timings in sizes.items():
        if test != title:
            yield f"# Collective test starting: {test}"
            yield HEADING
            title = test
        first = timings.get(False) or timings[True]
        rest = timings.get(True, "N/A N/A N/A N/A") if False in timings else ""
        yield f"{size} {count} {dtype} {redop or 'none'} -1 {first} {rest}"


def _count(row: Mapping[str, Any], test: str, ranks: Any) -> str:
    """Return the elements that a rank gives or gets: rccl-tests has the bytes alone."""
    size, width = row.get("size"), TYPE_BYTES.get(str(row.get("type")), 1)
    if not str(size).isdigit() or not str(ranks).isdigit():
        return _word(size)
    parts = int(ranks) if any(part in test.lower() for part in _SPLIT) else 1
    return str(int(size or 0) // width // max(parts, 1))


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _word(value: Any) -> str:
    """Return a value as one word of a table."""
    if isinstance(value, dict | list) or value is None:
        return ""
    return "_".join(str(value).split())[:200]
