"""Reads TOML with the line of every value."""

from __future__ import annotations

import re
import tomllib
from datetime import date, datetime, time
from typing import Any

from meshwright.errors import SpecError
from meshwright.reading.document import Document, FieldPath, Where
from meshwright.reading.guard import MAX_DEPTH, SPECS, check_size

_TABLE = re.compile(r"^[ \t]*\[\[?[ \t]*([\w.\- \"']{1,200}?)[ \t]*\]\]?", re.M)
_KEY = re.compile(r"^[ \t]*([\w.\-\"']{1,200})[ \t]*=", re.M)
_DEEP = re.compile(r"[\[{]")
_LINE_OF = re.compile(r"\(at line (\d+), column \d+\)")


def parse_toml(text: str, name: str) -> Document:
    """Return the fields of a text; `name` stands for it in messages.

    Raises:
        SpecError: the text is no TOML, is too long, or nests too deep.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if len(_DEEP.findall(line)) > MAX_DEPTH and _opened(line) > MAX_DEPTH:
            check_size(0, MAX_DEPTH + 1, Where(name, number), SPECS)
        digits = re.search(r"\d{400}", line)
        if digits:
            raise SpecError(f"{Where(name, number)}: expected at most 400 digits")
    try:
        data = tomllib.loads(text.replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        found = _LINE_OF.search(str(error))
        here = Where(name, int(found[1]) if found else 0)
        told = _LINE_OF.sub("", str(error)).strip()[:120]
        raise SpecError(f"{here}: not valid TOML: {told}") from None
    return _Placed(text, name).document(data)


def _opened(line: str) -> int:
    """Return the most brackets that are open at once in a line."""
    most = depth = 0
    for char in line:
        depth += (char in "[{") - (char in "]}")
        most = max(most, depth)
    return most


class _Placed:
    """Finds the lines of keys, table by table."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._lines: dict[FieldPath, int] = {}
        table: FieldPath = ()
        for number, line in enumerate(text.splitlines(), 1):
            if found := _TABLE.match(line):
                table = _path(found[1])
                self._lines.setdefault(table, number)
            elif found := _KEY.match(line):
                self._lines.setdefault((*table, *_path(found[1])), number)

    def document(self, data: dict[str, Any]) -> Document:
        document = Document(None, {(): Where(self._name)})
        document.data = self._plain(document, data, ())
        return document

    def _plain(self, document: Document, value: Any, path: FieldPath) -> Any:
        if path in self._lines:
            document.places[path] = Where(self._name, self._lines[path])
        if len(path) > MAX_DEPTH:
            check_size(0, len(path), document.where(path), SPECS)
        if isinstance(value, dict):
            items = value.items()
            return {k: self._plain(document, v, (*path, k)) for k, v in items}
        if isinstance(value, list):
            return [self._plain(document, v, path) for v in value]
        if isinstance(value, date | datetime | time):
            return str(value)
        return value


def _path(written: str) -> FieldPath:
    return tuple(part.strip(" \"'") for part in written.split("."))
