"""YAML and CSV as data, with the place of every value, within limits of size."""

from __future__ import annotations

import csv
import io
import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from meshwright.errors import SpecError
from meshwright.reading.document import Document, FieldPath, Where, dotted, shown

MAX_DEPTH = 40
"""Most levels of nesting in any file."""

_GAP = 1_024 // MAX_DEPTH
"""Characters between brackets at which the parser opens no more than `MAX_DEPTH` of
them before it tells an event: it reads 1,024 ahead, as long as a key may be."""

_CROWD = re.compile(rf"(?:[\[{{][^\[{{\n]{{0,{_GAP - 1}}}){{{MAX_DEPTH + 1},}}")
"""More brackets, with less between them, than files have that people write."""


class Limits(NamedTuple):
    """Limits on the size of files of a kind."""

    most_bytes: int = 1_000_000
    most_values: int = 20_000
    """Most values, after anchors are expanded."""


SPECS = Limits()

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def table_beside(module: str, name: str) -> Any:
    """Return the data of a YAML file that stands beside a module, given its path.

    It is one of ours: no limits, and no places of its values.
    """
    return yaml.load(Path(module).with_name(name).read_text(encoding="utf-8"), Loader)


def line_of(name: str, mark: Any, has_lines: bool = True) -> Where:
    """Return the place of a mark; text from the command line has no lines."""
    return Where(name, mark.line + 1 if mark and has_lines else 0)


def guard(text: str, name: str, has_lines: bool = True, limits: Limits = SPECS) -> None:
    """Refuse YAML text that is empty, too large, too deep, tagged, or two documents.

    Raises:
        SpecError: names the line and the limit.
    """
    documents = values = depth = 0
    for event in yaml.parse(_spread(text), Loader=Loader):
        if isinstance(event, yaml.NodeEvent):
            values += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
            problem = _tag_of(event) or excess(values, depth, limits)
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            problem = "a second document starts; expected one" * (documents > 1)
        else:
            depth -= isinstance(event, yaml.CollectionEndEvent)
            continue
        if problem:
            raise SpecError(f"{line_of(name, event.start_mark, has_lines)}: {problem}")
    if not values:
        raise SpecError(f"{name}: empty; expected YAML fields")


def _spread(text: str) -> str:
    """Return text in which excess depth is found before the parser reaches its limit.

    Blanks after a bracket change neither the structure nor the lines.
    """
    return _CROWD.sub(
        lambda crowd: re.sub(r"[\[{]", lambda found: found[0] + " " * _GAP, crowd[0]),
        text,
    )


def excess(values: int, depth: int, limits: Limits) -> str:
    """Return which limit more values or deeper nesting pass, or nothing."""
    if values > limits.most_values:
        return f"expected at most {limits.most_values:,} values"
    if depth > MAX_DEPTH:
        return f"expected at most {MAX_DEPTH} levels of nesting"
    return ""


def check_size(values: int, depth: int, here: Where, limits: Limits) -> None:
    """Refuse more values or deeper nesting than any file of a kind has.

    Raises:
        SpecError: names the line and the limit.
    """
    if problem := excess(values, depth, limits):
        raise SpecError(f"{here}: {problem}")


def _tag_of(event: yaml.NodeEvent) -> str:
    """Return why the tag of a value is refused, or nothing if it has none."""
    tag = getattr(event, "tag", None)
    return "" if tag is None else f"the tag {tag!r:.60}: expected plain YAML, no tags"


KINDS = {
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"\x1f\x8b": "an archive of gzip",
    b"PK\x03\x04": "an archive of zip",
    b"\x89PNG": "a picture",
    b"SQLite format 3\0": "a database of SQLite",
}
"""The first bytes of files that hold no text, with the kind of file."""


def is_folder(path: str | Path) -> bool:
    """Return whether a folder exists; False for a name that is too long."""
    return os.path.isdir(path)


def is_file(path: str | Path) -> bool:
    """Return whether a file exists; False for a name that is too long."""
    return os.path.isfile(path)


def read_bytes(path: Path, most: int, expected: str) -> bytes:
    """Return the content of a file that may hold text.

    No more than the limit is read, so that devices without an end do no harm.

    Raises:
        SpecError: the file cannot be read, is longer than `most` bytes, or is of a
            kind that holds no text; says what is `expected`.
    """
    here = Where(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise SpecError(f"{here}: {(error.strerror or 'unreadable').lower()}") from None
    except ValueError:
        raise SpecError(f"{str(path)!r}: no such file") from None
    if len(content) > most:
        raise SpecError(f"{here}: expected at most {most:,} bytes")
    for start, kind in KINDS.items():
        if content.startswith(start):
            raise SpecError(f"{here}: {kind}; expected {expected}")
    return content


def read_text(path: Path, most: int, expected: str) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark.

    Raises:
        SpecError: see `read_bytes`; or names the line that is not UTF-8, and what is
            `expected`.
    """
    content = read_bytes(path, most, expected)
    is_wide = content.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    if not is_wide and b"\0" in content[:2]:
        told = f"UTF-16 without a byte order mark; expected {expected} in UTF-8"
        raise SpecError(f"{Where(str(path))}: {told}")
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        here = Where(str(path), content.count(b"\n", 0, error.start) + 1)
        name = "UTF-16" if is_wide else "UTF-8"
        problem = f"byte {error.start} is not {name} text; expected {expected}"
        raise SpecError(f"{here}: {problem}") from None
    return text.replace("\r\n", "\n") if is_wide else text


MAX_BITS = 4_096
"""Most bits of a whole number; longer ones stay text, since Python refuses to print
them."""

LONGEST_WORD = 60
"""Most characters of a file of text alone, without fields, that is quoted."""

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_SURPRISE = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-9_.]+)+)")
"""Text that YAML 1.1 takes for octal (010 is 8) or base 60 (1:30 is 90)."""


class NotYaml(SpecError):
    """Raised for a text that is no YAML, unlike YAML that passes a limit."""


def read_yaml(path: Path, limits: Limits = SPECS) -> Document:
    """Return the content of one YAML file as data with places.

    Raises:
        SpecError: the file cannot be read, is not YAML, or passes a limit.
    """
    text = read_text(path, limits.most_bytes, "a YAML file")
    document = parse_yaml(text, str(path), limits=limits)
    if isinstance(document.data, str) and len(document.data) > LONGEST_WORD:
        raise SpecError(f"{document.where(())}: text alone; expected YAML fields")
    return document


def parse_yaml(
    text: str, name: str, has_lines: bool = True, limits: Limits = SPECS
) -> Document:
    """Return the content of YAML text as data with places; `name` stands for it.

    Raises:
        NotYaml: the text is not YAML.
        SpecError: it is empty, or passes a limit.
    """
    try:
        guard(text, name, has_lines, limits)
        loader = Loader(text)
        builder = _Builder(name, loader, has_lines, limits)
        builder.document.data = builder.build(loader.get_single_node(), (), 0)
    except (yaml.YAMLError, UnicodeError) as error:
        line, problem = _diagnosis(text, error)
        here = Where(name, line if has_lines else 0)
        raise NotYaml(f"{here}: not valid YAML: {problem}") from None
    return builder.document


def _diagnosis(text: str, error: Exception) -> tuple[int, str]:
    """Return the line on which YAML is invalid, and the problem."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text.encode(errors="replace")[: error.position]
        return before.count(b"\n") + 1, str(error.reason)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return 0, str(error).splitlines()[0]
    lines = text.splitlines()
    line = min(mark.line + 1, len(lines))
    problem = str(getattr(error, "problem", error))
    if problem == "could not find expected ':'":
        glued = [n for n, one in enumerate(lines[:line], 1) if _GLUED.match(one)]
        if glued:
            return glued[-1], "a blank is missing behind the colon"
    if problem == "did not find expected key":
        problem += (
            "; indent the fields of a mapping alike, and close quotes and brackets"
        )
    is_tabbed = line > 0 and "\t" in lines[line - 1]
    hint = "; indent with spaces, not with tabs" if is_tabbed else ""
    return line, f"{problem}{hint}"


_GLUED = re.compile(r"\s*\w{1,60}:[^\s/]")
"""A line whose field and value no blank parts, unlike those of an address."""


@dataclass
class _Builder:
    """Turns composed nodes into plain data, counting values against their limit."""

    name: str
    loader: Any
    has_lines: bool
    limits: Limits
    document: Document = field(default_factory=lambda: Document(None))
    values: int = 0

    def build(self, node: yaml.Node, path: FieldPath, depth: int) -> Any:
        here = line_of(self.name, node.start_mark, self.has_lines)
        self.values += 1
        check_size(self.values, depth, here, self.limits)
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
            value = self.loader.construct_object(node)
        except ValueError:  # too many digits, or none behind 0x
            return node.value
        is_endless = isinstance(value, int) and value.bit_length() > MAX_BITS
        return node.value if is_endless else value

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


def read_table(path: Path, limits: Limits) -> Document:
    """Return one nested mapping for each row; empty cells are left out.

    Raises:
        SpecError: the file cannot be read or passes a limit, or a row does not match
            the heading; names the line, and the column where there is one.
    """
    text = read_text(path, limits.most_bytes, "a CSV table")
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    table = _Table(str(path), limits)
    try:
        for cells in rows:
            table.add(cells, rows.line_num)
    except csv.Error as error:
        where = Where(str(path), rows.line_num)
        raise SpecError(f"{where}: not valid CSV: {error}") from None
    return Document(table.rows, table.places)


class _Table:
    """The heading and the rows read so far."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name, self.limits = name, limits
        self.rows: list[dict[str, Any]] = []
        self.places: dict[FieldPath, Where] = {(): Where(name)}
        self.columns: list[str] = []
        self.count = 0
        self.known: dict[str, Any] = {}
        """Values of cells by their text, since most texts are in many rows."""

    def add(self, cells: Sequence[str], line: int) -> None:
        """Take the cells of a line: the heading, a row, or an empty line."""
        where = Where(self.name, line)
        if not any(cells):
            return
        if not self.columns:
            self.columns = _heading(cells, where)
            return
        if len(cells) > len(self.columns):
            told = f"expected at most {len(self.columns)}, as there are columns"
            raise SpecError(f"{where}: {len(cells)} cells; {told}")
        self.places[len(self.rows),] = where
        self.rows.append(self._row(cells, where))

    def _row(self, cells: Sequence[str], where: Where) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for column, cell in zip(self.columns, cells, strict=False):
            if cell.strip():
                *parents, last = column.split(".")
                target = row
                for parent in parents:
                    target = target.setdefault(parent, {})
                target[last] = self._value(cell, column, where)
        return row

    def _value(self, cell: str, column: str, where: Where) -> Any:
        self.count += 1
        if self.count > self.limits.most_values:
            most = f"{self.limits.most_values:,}"
            raise SpecError(f"{where}: expected at most {most} values")
        if cell not in self.known:
            place = f"{where}: {shown(column)[1:-1]}"
            self.known[cell] = _meaning(cell, place)
        return self.known[cell]


def _meaning(cell: str, place: str) -> Any:
    """Return the value of a cell as YAML, or its text where that is no YAML."""
    try:
        return parse_yaml(cell, place, has_lines=False).data
    except NotYaml:
        return cell


def _heading(cells: Sequence[str], where: Where) -> list[str]:
    """Return the names of columns, none of which contains another.

    Raises:
        SpecError: a name stands twice, contains another, or is nested too deep.
    """
    columns = [cell.strip() for cell in cells]
    seen: set[str] = set()
    above = {path for column in columns for path in _above(column)}
    for column in columns:
        told = f"{where}: column {shown(column)}"
        if column in seen:
            raise SpecError(f"{told}: stands twice; expected each field once")
        if column in above:
            raise SpecError(f"{told}: given beside fields of it; keep one or the other")
        if column.count(".") > MAX_DEPTH:
            raise SpecError(f"{told}: expected at most {MAX_DEPTH} levels of nesting")
        seen.add(column)
    return columns


def _above(column: str) -> list[str]:
    """Return the fields that contain a dotted one, up to the accepted depth."""
    parts = column.split(".", MAX_DEPTH + 1)[:-1]
    return [".".join(parts[:size]) for size in range(1, len(parts) + 1)]
