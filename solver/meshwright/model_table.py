"""The bundled models: families in one table, a model a row.

A family says what its models share and which fields the columns hold; a field of a part
has a dot, as `moe.top_k`. A row may end on a mapping of further fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    columns, row = family["columns"], family["models"][name]
    fields: dict[str, Any] = {"name": name}
    said = [family["shared"], dict(zip(columns, row, strict=False))]
    for column, value in _said([*said, *row[len(columns) :]]):
        part, dot, field = column.partition(".")
        if dot:
            fields[part] = {**fields.get(part, {}), field: value}
        else:
            fields[part] = value
    return Document(fields, {(): places[name]})


def _said(mappings: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield columns and their values, without those that are left empty."""
    for mapping in mappings:
        yield from ((key, value) for key, value in mapping.items() if value is not None)


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
