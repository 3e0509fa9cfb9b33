"""Reads YAML safely, remembering the line of every value.

Only plain scalars, lists and mappings are built (the safe constructor). Size, depth
and the number of values after anchors are expanded are limited, and a key that stands
twice in one mapping is refused rather than the last one winning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.spec.guard import Loader, check_size, guard, line_of
from meshwright.spec.places import Document, FieldPath, Where, dotted

MAX_BYTES = 1_000_000

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_SURPRISE = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-9_.]+)+)")
"""What YAML 1.1 reads as octal (010 is 8) or base 60 (1:30 is 90): kept as text."""


def read_yaml(path: Path) -> Document:
    """Return the content of one YAML file as data with places.

    Raises:
        SpecError: the file cannot be read, is not YAML, or passes a limit.
    """
    return parse_yaml(_read_text(path), str(path))


def parse_yaml(text: str, name: str, has_lines: bool = True) -> Document:
    """Return the content of YAML text as data with places; `name` stands for it.

    Raises:
        SpecError: the text is not YAML, is empty, or passes a limit.
    """
    try:
        guard(text, name, has_lines)
        loader = Loader(text)
        builder = _Builder(name, loader, has_lines)
        builder.document.data = builder.build(loader.get_single_node(), (), 0)
    except (yaml.YAMLError, UnicodeError) as error:
        line, problem = _diagnosis(text, error)
        here = Where(name, line if has_lines else 0)
        raise SpecError(f"{here}: not valid YAML: {problem}") from None
    return builder.document


def _diagnosis(text: str, error: Exception) -> tuple[int, str]:
    """Return the line on which YAML is broken, and how."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text.encode(errors="replace")[: error.position]
        return before.count(b"\n") + 1, str(error.reason)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return 0, str(error).splitlines()[0]
    lines = text.splitlines()
    line = min(mark.line + 1, len(lines))
    is_tabbed = line > 0 and "\t" in lines[line - 1]
    hint = "; indent with spaces, not with tabs" if is_tabbed else ""
    return line, f"{getattr(error, 'problem', error)}{hint}"


def _read_text(path: Path) -> str:
    here = Where(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise SpecError(f"{here}: expected at most {MAX_BYTES:,} bytes")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        here = Where(str(path), content.count(b"\n", 0, error.start) + 1)
        problem = f"byte {error.start} is not UTF-8 text; expected a YAML file"
        raise SpecError(f"{here}: {problem}") from None
    except OSError as error:
        raise SpecError(f"{here}: {(error.strerror or 'unreadable').lower()}") from None


@dataclass
class _Builder:
    """Turns composed nodes into plain data, counting values so that none explode."""

    name: str
    loader: Any
    has_lines: bool
    document: Document = field(default_factory=lambda: Document(None))
    values: int = 0

    def build(self, node: yaml.Node, path: FieldPath, depth: int) -> Any:
        here = line_of(self.name, node.start_mark, self.has_lines)
        self.values += 1
        check_size(self.values, depth, here)
        self.document.places[path] = here
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.build(child, (*path, i), depth + 1)
                for i, child in enumerate(node.value)
            ]
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        is_plain = node.tag != "tag:yaml.org,2002:str"
        if node.tag == _TIMESTAMP or (is_plain and _SURPRISE.fullmatch(node.value)):
            return node.value
        try:
            return self.loader.construct_object(node)
        except ValueError:  # digits without end, or none behind 0x
            return node.value

    def _mapping(self, node: yaml.MappingNode, path: FieldPath, depth: int) -> Any:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = line_of(self.name, key_node.start_mark, self.has_lines)
            if not isinstance(key_node, yaml.ScalarNode):
                raise SpecError(f"{here}: a key is a list or mapping; expected text")
            key = str(key_node.value)
            if key in result:
                first = self.document.places[(*path, key)]
                field = dotted((*path, key))[:80]
                raise SpecError(f"{here}: {field}: already given at {first}")
            result[key] = self.build(value_node, (*path, key), depth + 1)
            self.document.places[(*path, key)] = here
        return result
