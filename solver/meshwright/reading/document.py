"""Data read from a file, and where in the file each value was written.

Errors of pydantic become lines: FILE:LINE: field: VALUE: what is accepted.
"""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from meshwright.errors import SpecError
from meshwright.escape import printable

if TYPE_CHECKING:  # Help and versions are told without it.
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

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

    def part(self, step: str | int) -> Document:
        """Return the value at a step as a document."""
        places = {p[1:]: where for p, where in self.places.items() if p[:1] == (step,)}
        return Document(self.data[step], places)

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


DISAGREEMENT = "fields_disagree"
"""The type of the pydantic errors that carry a list of problems."""

FOLLOWS = "follows"
"""The type of the pydantic errors that follow from another error."""

MOST_NEAR = 3
"""Most fields whose spelling is near that of an unknown one which are named."""

MOST_LISTED = 12
"""Most fields that a message lists of a section that is missing, or is none."""

MOST_LINES = 10

MOST_CHARACTERS = 1_800
"""Most characters of all lines together, unless the first has more: a screen."""

LONGEST_NAME = 100
"""Most characters of the path of a field in a message."""

_PRESETS = {("model",), ("cluster", "topology"), ("cluster", "topology", "gpu")}
"""Paths at which `preset` is a field too."""

_EXPECTED = {
    "bool_type": "expected true or false",
    "string_type": "expected text; put it in quotes",
    "tuple_type": "expected a list",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "greater_than": "expected more than {gt:g}",
    "greater_than_equal": "expected {ge:g} or more",
    "less_than_equal": "expected at most {le:g}",
}
"""What is accepted, by the type of a pydantic error, with its limits."""

Schema = TypeVar("Schema", bound="BaseModel")


def validated(document: Document, schema: type[Schema], data: Any = ...) -> Schema:
    """Return the model of a document.

    Args:
        document: Fields, and where they were written.
        schema: The model that they make.
        data: What is validated, if that is not all of the document as it is.

    Raises:
        SpecError: one line for each thing that is wrong, see `explain`.
    """
    from pydantic import ValidationError

    try:
        return schema.model_validate(document.data if data is ... else data)
    except ValidationError as error:
        raise SpecError(explain(document, error, schema)) from None


def explain(document: Document, error: ValidationError, schema: Any) -> str:
    """Return one line for each thing that is wrong, the first ten of them."""
    lines: list[str] = []
    for detail in error.errors(include_url=False):
        lines += _lines(document, detail, schema)
    return "\n".join(_first(list(dict.fromkeys(lines))))


def _first(lines: list[str]) -> list[str]:
    """Return as many lines as fit on a screen, and how many there are besides."""
    sizes = itertools.accumulate(len(line) + 1 for line in lines)
    fitting = sum(size <= MOST_CHARACTERS for size in sizes)
    count = min(max(fitting, 1), MOST_LINES)
    if len(lines) == count + 1 <= fitting:
        count += 1  # It takes no more room than to say that there is one.
    left = len(lines) - count
    return [*lines[:count], *([f"... and {left} more"] if left else [])]


def shown(value: Any) -> str:
    """Return a value in at most 60 characters."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _lines(document: Document, detail: ErrorDetails, schema: Any) -> list[str]:
    loc = detail["loc"]
    if detail["type"] == FOLLOWS:
        return []
    if detail["type"] == DISAGREEMENT:
        return [
            _line(document, loc + problem.path, f"{shown(problem.value)} {problem[2]}")
            for problem in detail["ctx"]["problems"]
        ]
    if detail["type"] == "missing":
        return [_line(document, loc, f"missing; expected {_meaning(schema, loc)}")]
    if detail["type"] == "extra_forbidden":
        return [_line(document, loc, _unknown(document, schema, loc))]
    path, value = document.known(loc), detail["input"]
    message = _message(detail, schema, path)
    is_section = isinstance(value, dict) and _model_at(schema, path) is not None
    text = message if is_section else f"{shown(value)}: {message}"
    return [_line(document, path, text)]


def _line(document: Document, path: FieldPath, text: str) -> str:
    name = document.name(path)
    name = name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + "..."
    field = f"{name}: " if name else ""
    return f"{document.where(path)}: {field}{text}"


def _message(detail: ErrorDetails, schema: Any, loc: FieldPath) -> str:
    kind = detail["type"]
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expected {_section(schema, loc)}"
    if kind == "literal_error":
        return _choices(str(detail["ctx"]["expected"]), detail["input"])
    if kind == "string_type" and isinstance(detail["input"], list | dict | None):
        return "expected text"
    if kind in _EXPECTED:
        return _EXPECTED[kind].format(**detail.get("ctx", {}))
    return detail["msg"].removeprefix("Value error, ")


def _choices(expected: str, value: Any) -> str:
    accepted = expected.replace("'", "")
    word = str(value)[:40].lower()
    close = difflib.get_close_matches(word, expected.split("'")[1::2], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"expected {accepted}{hint}"


def _meaning(schema: Any, loc: FieldPath) -> str:
    """Return the meaning of a field that is missing."""
    if _model_at(schema, loc) is not None:
        return _section(schema, loc)
    parent = _model_at(schema, loc[:-1])
    field = _fields_of(parent).get(str(loc[-1]))
    text = (field and field.description) or "text"
    return text[:1].lower() + text[1:].rstrip(".") if text[1:2].islower() else text


def _unknown(document: Document, schema: Any, loc: FieldPath) -> str:
    """Return the message on an unknown field; some are known by other names."""
    model, name = _model_at(schema, loc[:-1]), str(loc[-1])
    if meaning := getattr(model, "NOT_MODELLED", {}).get(name):
        return f"not modelled: {meaning}"
    if successor := getattr(model, "REPLACED", {}).get(name):
        return f"replaced by {successor}"
    meant_by = getattr(model, "meant_by", None)
    if meant_by is not None and (meant := meant_by(name)):
        return f"unknown field; did you mean {meant}?"
    before, colon, after = name.partition(":")
    if colon and before in _fields_of(model):
        return f"unknown field; a blank is missing behind the colon: {before}: {after}"
    return f"unknown field; {_fields_near(document, schema, loc)}"


def _fields_near(document: Document, schema: Any, loc: FieldPath) -> str:
    """Return the fields that an unknown one may mean, or all where none is near."""
    fields = list(_fields_of(_model_at(schema, loc[:-1])))
    fields += ["preset"] if loc[:-1] in _PRESETS else []
    fields += document.stand_ins.get(loc[:-1], ())
    name = str(loc[-1])[:40]
    if len(loc) <= 2 and (elsewhere := _sections_with(schema, name)):
        return f"did you mean {' or '.join(elsewhere)}?"
    near = difflib.get_close_matches(name, fields, n=MOST_NEAR)
    near += [field for field in fields if name in field.split("_")]
    if not near:
        return f"accepted: {', '.join(fields)}"
    return f"did you mean {' or '.join(dict.fromkeys(near))}?"


def _sections_with(schema: Any, name: str) -> list[str]:
    """Return the paths of a field of this name, at the top of a document or below."""
    sections = ((one, _model_at(schema, (one,))) for one in _fields_of(schema))
    below = [f"{one}.{name}" for one, model in sections if name in _fields_of(model)]
    return [name, *below] if name in _fields_of(schema) else below


def _section(schema: Any, loc: FieldPath) -> str:
    can_be_named = "cluster" in _fields_of(schema)
    can_be_named &= loc in _PRESETS or loc == ("cluster",)
    name = "a name, or " if can_be_named else ""
    model = _model_at(schema, loc)
    if model is None:
        return "a mapping"
    return f"{name}a mapping with the fields {_listed(_fields_of(model))}"


def _listed(fields: dict[str, FieldInfo]) -> str:
    """Return the names of fields, those that have to be given first, at most a few."""
    names = sorted(fields, key=lambda name: not fields[name].is_required())
    if len(names) <= MOST_LISTED + 1:
        return ", ".join(names)
    rest = len(names) - MOST_LISTED
    return f"{', '.join(names[:MOST_LISTED])} and {rest} others"


def _model_at(schema: Any, loc: FieldPath) -> Any:
    """Return the model at a path of the schema, or None.

    Keys of a mapping are the user's words, and entries of a list have numbers: neither
    are fields.
    """
    annotation = schema
    for step in loc:
        values = _values_of(annotation)
        if values is not None:
            annotation = values
        elif isinstance(step, str):
            field = _fields_of(_model_of(annotation)).get(step)
            annotation = None if field is None else field.annotation
    return None if _values_of(annotation) is not None else _model_of(annotation)


def _values_of(annotation: Any) -> Any:
    """Return the annotation of the values of a mapping, None where it is none."""
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    inner = map(_values_of, get_args(annotation))
    return next((values for values in inner if values is not None), None)


def _fields_of(model: Any) -> dict[str, FieldInfo]:
    """Return the fields of a model by the names that users write; none of None."""
    known = getattr(model, "model_fields", {})
    return {info.alias or name: info for name, info in known.items()}


def _model_of(annotation: Any) -> Any:
    """Return the model inside an annotation such as `tuple[Level, ...] | None`."""
    if hasattr(annotation, "model_fields"):
        return annotation
    inner = [_model_of(part) for part in getattr(annotation, "__args__", ())]
    return next((model for model in inner if model is not None), None)
