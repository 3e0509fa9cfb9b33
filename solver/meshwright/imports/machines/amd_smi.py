"""`amd-smi topology`, as tables or as JSON: weight, hops and link type by bus id."""

from __future__ import annotations

import json
import re
from typing import Any

from meshwright.imports.importer import MachineImporter
from meshwright.imports.machine_facts import MAX_DEVICES
from meshwright.imports.machines.rocm_smi import (
    LINK_TYPES,
    RocmTopo,
    check_cell,
    to_topology,
)
from meshwright.imports.text import Line, check_length, fail, read_lines, shown

TABLES = {"weight table": "weight", "hops table": "hops", "link type table": "type"}

FIELDS = {"weight": "weight", "num_hops": "hops", "link_type": "type"}
"""By field of a link in JSON, the block of rocm-smi."""

_TITLE = re.compile(r"\s{0,20}([A-Z][A-Z -]{2,40}) TABLE:\s{0,20}")
_BUS_ID = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")

Blocks = dict[str, dict[tuple[str, str], str]]


def parse(text: str, name: str) -> RocmTopo:
    """Return the tables of `amd-smi topology`.

    Raises:
        SpecError: there is no table, or a link type is unknown; with file and line.
    """
    check_length(text, name)
    blocks: Blocks = {}
    if text.lstrip("\ufeff \t\r\n").startswith(("[", "{")):
        order = _read_json(text, name, blocks)
    else:
        order = _read_tables(read_lines(text, name), name, blocks)
    if not order:
        fail(name, 0, "no table of bus ids; expected the output of amd-smi topology")
    if len(order) > MAX_DEVICES:
        fail(name, 0, f"{len(order):,} GPUs; expected at most {MAX_DEVICES}")
    numbers = {bus_id: f"GPU{i}" for i, bus_id in enumerate(order)}
    named = {
        block: {(numbers[a], numbers[b]): cell for (a, b), cell in cells.items()}
        for block, cells in blocks.items()
    }
    return RocmTopo(name, tuple(numbers.values()), named)


def _read_tables(lines: list[Line], name: str, blocks: Blocks) -> list[str]:
    """Store the cells of all tables; return the bus ids in the order of columns."""
    block, columns, order = "", list[str](), dict[str, None]()
    for line in lines:
        words = line.text.split()
        if title := _TITLE.fullmatch(line.text[:80]):
            block, columns = TABLES.get(f"{title[1].lower()} table", ""), []
        elif not block or not words or not _BUS_ID.fullmatch(words[0]):
            continue
        elif all(map(_BUS_ID.fullmatch, words)) and (len(words) > 1 or not columns):
            columns = words
            _check_columns(columns, line, name)
            order |= dict.fromkeys(columns)
        elif columns:
            _read_row(words, columns, line, name, blocks.setdefault(block, {}), block)
            order.setdefault(words[0])
    return [*order]


def _check_columns(columns: list[str], line: Line, name: str) -> None:
    if len(set(columns)) < len(columns) or len(columns) > MAX_DEVICES:
        fail(name, line.number, f"expected up to {MAX_DEVICES} columns, each once")


def _read_row(
    words: list[str],
    columns: list[str],
    line: Line,
    name: str,
    cells: dict[tuple[str, str], str],
    block: str,
) -> None:
    if len(words) - 1 != len(columns):
        sentence = f"{len(words) - 1} cells; expected {len(columns)}"
        fail(name, line.number, f"{words[0]} has {sentence}")
    for column, cell in zip(columns, words[1:], strict=True):
        if column != words[0] and cell != "SELF":
            check_cell(block, cell, line, name)
            cells[words[0], column] = cell


def _read_json(text: str, name: str, blocks: Blocks) -> list[str]:
    """Store the links of a list of GPUs; return their bus ids in its order."""
    try:
        data: Any = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        fail(name, 1, "not JSON; expected that of amd-smi topology --json")
    items = data if isinstance(data, list) else [data]
    gpus = [item for item in items if isinstance(item, dict) and "links" in item]
    order = dict.fromkeys(str(gpu.get("bdf")) for gpu in gpus[: MAX_DEVICES + 1])
    for gpu in gpus:
        links = gpu["links"] if isinstance(gpu["links"], list) else []
        for link in (link for link in links if isinstance(link, dict)):
            pair = (str(gpu.get("bdf")), str(link.get("bdf")))
            if pair[0] != pair[1] and {*pair} <= order.keys():
                _store(link, pair, name, blocks)
    return [*order]


def _store(
    link: dict[str, Any], pair: tuple[str, str], name: str, blocks: Blocks
) -> None:
    for field, block in FIELDS.items():
        cell = str(link.get(field, ""))
        if not cell or cell == "SELF":
            continue
        if block == "type" and cell not in LINK_TYPES:
            fail(name, 0, f"link_type: {shown(cell)}: unknown link type")
        blocks.setdefault(block, {})[pair] = cell


IMPORTER = MachineImporter(
    sign=r"(?m)^\s{0,9}(?:WEIGHT|HOPS|LINK TYPE) TABLE:|\"link_type\"\s{0,9}:",
    parse=parse,
    to_topology=to_topology,
)
