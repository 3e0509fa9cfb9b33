"""Data read from a file, and where in the file each value was written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from meshwright.escape import printable

FieldPath = tuple[str | int, ...]

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\.\d{1,9}|\[\d{1,9}\])*", re.ASCII)
_STEP = re.compile(r"([A-Za-z_]\w*)|(\d+)", re.ASCII)


@dataclass(frozen=True)
class Where:
    """A place in a file, or on the command line (line 0)."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        """Return `file:line`, or the file alone where there is no line."""
        file = printable(self.file)
        return f"{file}:{self.line}" if self.line else file


@dataclass
class Document:
    """Plain data and, for every field path in it, where it was written."""

    data: Any
    places: dict[FieldPath, Where] = field(default_factory=dict)
    root: FieldPath = ()
    """The path in the data below which the fields of the file are."""
    renamed: dict[FieldPath, FieldPath] = field(default_factory=dict)
    """By path in the data, the path in the file, where the two differ."""
    stand_ins: dict[FieldPath, tuple[str, ...]] = field(default_factory=dict)
    """By path, the fields accepted there that loading replaces by others."""

    def where(self, path: FieldPath) -> Where:
        """Return the place of a field, or of the nearest written field around it."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places[path]

    def name(self, path: FieldPath) -> str:
        """Return a path as the file has it, dotted."""
        for renamed, written in self.renamed.items():
            if path[: len(renamed)] == renamed:
                path = written + path[len(renamed) :]
        size = len(self.root)
        return dotted(path[size:] if path[:size] == self.root else path)

    def below(self, root: FieldPath) -> Document:
        """Return a document that has this one's data at `root`."""
        data = self.data
        for step in reversed(root):
            data = {step: data}
        places = {root + path: where for path, where in self.places.items()}
        return Document(data, {(): self.places[()], **places}, root)

    def value(self, path: FieldPath) -> Any:
        """Return the value at a path."""
        value = self.data
        for step in path:
            value = value[step]
        return value

    def known(self, path: FieldPath) -> FieldPath:
        """Return a path without its steps that do not exist in the data."""
        value, known = self.data, []
        for step in path:
            is_key = isinstance(value, dict) and step in value
            if is_key or (isinstance(value, list) and step in range(len(value))):
                value = value[step]
                known.append(step)
        return tuple(known)

    def graft(self, path: FieldPath, other: Document) -> None:
        """Put the data of another document at `path`, with the places of its values."""
        self.value(path[:-1])[path[-1]] = other.data
        size = len(path)
        self.places = {p: w for p, w in self.places.items() if p[:size] != path}
        self.places.update({path + p: where for p, where in other.places.items()})


def dotted(path: FieldPath) -> str:
    """Return a path with dots, such as `cluster.topology.levels.0`."""
    return printable(".".join(map(str, path)))


def field_path(text: str) -> FieldPath | None:
    """Return the path in a text, `levels[0].gb_s` or `levels.0.gb_s`, or None."""
    if not _PATH.fullmatch(text):
        return None
    return tuple(name or int(index) for name, index in _STEP.findall(text))
