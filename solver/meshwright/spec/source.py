"""Reads YAML safely, remembering the line of every value.

Only plain scalars, lists and mappings are built (the safe constructor). Size, depth
and the number of values after anchors are expanded are limited, and a key that stands
twice in one mapping is refused rather than the last one winning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from meshwright.errors import SpecError

MAX_BYTES = 4_000_000
MAX_VALUES = 20_000
MAX_DEPTH = 40

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Where:
    """A place in a file, or on the command line (line 0)."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        """Return `file:line`, or the file alone where there is no line."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass
class Document:
    """Plain data and, for every field path in it, where it was written."""

    data: Any
    places: dict[FieldPath, Where] = field(default_factory=dict)

    def where(self, path: FieldPath) -> Where:
        """Return the place of the nearest enclosing field that was written down."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places[path]

    def graft(self, path: FieldPath, other: Document) -> None:
        """Put another document's data at `path`, with its own places."""
        target = self.data
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = other.data
        self.places.update({path + p: where for p, where in other.places.items()})


def read_yaml(path: Path) -> Document:
    """Return the content of one YAML file as data with places.

    Raises:
        SpecError: the file cannot be read, is not YAML, or passes a limit.
    """
    return parse_yaml(_read_text(path), str(path))


def parse_yaml(text: str, name: str) -> Document:
    """Return the content of YAML text as data with places; `name` stands for it.

    Raises:
        SpecError: the text is not YAML, is empty, or passes a limit.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise SpecError(f"{name}: the file is empty; expected YAML fields")
        document = Document(None)
        document.data = _Builder(name, loader, document).build(node, (), 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise SpecError(f"{name}{line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{name}: not valid YAML: {error}") from None
    except RecursionError:
        raise SpecError(f"{name}: nested deeper than {MAX_DEPTH} levels") from None
    return document


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(f"{path}: larger than {MAX_BYTES:,} bytes")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8 text; expected a YAML file"
        raise SpecError(f"{path}: {problem}") from None
    except OSError as error:
        raise SpecError(f"{path}: {(error.strerror or 'unreadable').lower()}") from None


@dataclass
class _Builder:
    """Turns composed nodes into plain data, counting values so that none explode."""

    name: str
    loader: Any
    document: Document
    values: int = 0

    def build(self, node: yaml.Node, path: FieldPath, depth: int) -> Any:
        here = Where(self.name, node.start_mark.line + 1)
        self.values += 1
        if self.values > MAX_VALUES:
            raise SpecError(f"{here}: more than {MAX_VALUES:,} values after anchors")
        if depth > MAX_DEPTH:
            raise SpecError(f"{here}: nested deeper than {MAX_DEPTH} levels")
        self.document.places[path] = here
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.build(child, (*path, i), depth + 1)
                for i, child in enumerate(node.value)
            ]
        return self._scalar(node, here)

    def _scalar(self, node: yaml.Node, here: Where) -> Any:
        try:
            return self.loader.construct_object(node)
        except ValueError as error:
            raise SpecError(f"{here}: {node.value!r}: {error}") from None

    def _mapping(self, node: yaml.MappingNode, path: FieldPath, depth: int) -> Any:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = Where(self.name, key_node.start_mark.line + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                raise SpecError(f"{here}: a key must be plain text")
            key = str(key_node.value)
            if key in result:
                raise SpecError(f"{here}: the key {key!r} stands twice")
            result[key] = self.build(value_node, (*path, key), depth + 1)
            self.document.places[(*path, key)] = here
        return result
