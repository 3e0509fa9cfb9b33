"""The bundled models: families in one table, a model a row.

A family says what its models share and which fields the columns hold; a field of a part
has a dot, as `moe.top_k`. A row may end on a mapping of further fields.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.reading.document import Document, Where
from meshwright.reading.yaml_and_csv import parse_yaml

FILE = "families.yaml"
"""Of the table; a path below it, as families.yaml/llama3-8b.yaml, is that of a row."""

_FAMILY = re.compile(r"([\w.-]+):")
_ROW = re.compile(r"    ([\w.-]+): \[([^,]+),")


@cache
def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


@cache
def _families(file: Path) -> dict[str, tuple[int, int]]:
    """Return by model the lines of its family: its first, and the one behind it."""
    lines = _lines(file)
    heads = [at for at, line in enumerate(lines) if _FAMILY.fullmatch(line)]
    ends = [*heads[1:], len(lines)]
    return {
        row[1]: (start, end)
        for start, end in zip(heads, ends, strict=True)
        for row in filter(None, map(_ROW.match, lines[start:end]))
    }


@cache
def hubs(file: Path) -> dict[str, str]:
    """Return the models of a table, with their names on the hub; empty without one."""
    rows = filter(None, map(_ROW.match, _lines(file)))
    return {row[1]: "" if row[2] == "~" else row[2] for row in rows}


def about(file: Path, name: str) -> str:
    """Return the first line of the comment above the family of a model."""
    lines, start = _lines(file), _families(file)[name][0]
    told = ""
    while start and lines[start - 1].startswith("# "):
        start -= 1
        told = lines[start].removeprefix("# ")
    return told


def read(file: Path, name: str) -> Document:
    """Return the fields of a model, and the line of the table which has them."""
    family, places = _family(file, *_families(file)[name])
    return Document({"name": name, **fields(family, name)}, {(): places[name]})


def fields(family: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a row; those of parts are in mappings of their own."""
    columns, row = family["columns"], family["models"][name]
    named = dict(zip(columns, row, strict=False))
    found: dict[str, Any] = {}
    for mapping in (family["shared"], named, *row[len(columns) :]):
        for column, value in mapping.items():
            part, dot, field = column.partition(".")
            if value is not None:
                found[part] = {**found.get(part, {}), field: value} if dot else value
    return found


def families(file: Path) -> dict[str, dict[str, Any]]:
    """Return what every family says: `shared`, `columns` and `models`, its rows."""
    spans = dict.fromkeys(_families(file).values())
    lines = _lines(file)
    return {lines[span[0]][:-1]: _family(file, *span)[0] for span in spans}


@cache
def _family(
    file: Path, start: int, end: int
) -> tuple[dict[str, Any], dict[str, Where]]:
    """Return what a family says, and the place of every row."""
    text = "\n" * start + "\n".join(_lines(file)[start:end])
    document = parse_yaml(text, str(file))
    ((head, family),) = document.data.items()
    places = {row: document.where((head, "models", row)) for row in family["models"]}
    return family, places
