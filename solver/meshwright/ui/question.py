"""A question as the page asks it: a spec as JSON, and edits of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.api.load import load
from meshwright.errors import SpecError
from meshwright.loading.bundled_names import with_bundled_names
from meshwright.loading.load import open_sections, resolve_names
from meshwright.loading.source import open_source
from meshwright.reading.guard import MAX_DEPTH, SPECS
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from meshwright.ui.edits import Edit, Fields, edited

MOST_EDITS = 100
"""Most edits of one question."""


@dataclass(frozen=True)
class Question:
    """A spec, and its fields as they are written."""

    fields: Fields
    spec: Spec
    notes: tuple[str, ...]


def read_question(body: Mapping[str, Any]) -> Question:
    """Return the question of a request.

    Raises:
        SpecError: the spec or an edit cannot be read, or a name is that of a file.
    """
    fields = body.get("spec")
    if not isinstance(fields, dict):
        raise SpecError("spec: missing; expected the fields of a spec")
    check_size(fields)
    named = with_bundled_names(fields)
    if edits := _edits(body.get("edits", [])):
        named = with_bundled_names(edited(named, _resolved(named), edits))
    notes: list[str] = []
    spec = load(named, notes=notes)
    if isinstance(spec, ServingSpec):
        told = "this page is for training; `meshwright solve` answers specs of serving"
        raise SpecError(f"inference: {told}")
    if isinstance(spec, OpenSpec):
        told = "this page asks about one cluster and one batch"
        raise SpecError(f"open numbers: {told}; `meshwright solve` chooses among many")
    return Question(as_written(named), spec, tuple(notes))


def check_size(value: Any) -> None:
    """Refuse data that nests too deep, or that has too many values.

    Raises:
        SpecError: names the limit.
    """
    level, depth, values = [value], 0, 0
    while level:
        depth, values = depth + 1, values + len(level)
        if depth > MAX_DEPTH:
            raise SpecError(f"spec: expected at most {MAX_DEPTH} levels of nesting")
        if values > SPECS.most_values:
            raise SpecError(f"spec: expected at most {SPECS.most_values:,} values")
        level = [inner for own in level for inner in _inner(own)]


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _edits(given: Any) -> list[Edit]:
    is_list = isinstance(given, list) and len(given) <= MOST_EDITS
    if not is_list or not all(map(_is_edit, given)):
        raise SpecError(f"edits: expected at most {MOST_EDITS} of [PATH, VALUE]")
    check_size(given)
    return [Edit(path, value) for path, value in given]


def _is_edit(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _resolved(fields: Fields) -> Fields:
    """Return the fields with every name replaced by what it stands for."""
    document = open_source(fields, "specs")
    open_sections(document)
    resolve_names(document)
    assert isinstance(document.data, dict)
    return document.data


def as_written(fields: Fields) -> Fields:
    """Return fields in which a preset without other fields is its name."""
    own = dict(fields)
    own["model"] = _name_of(own.get("model"))
    cluster = own.get("cluster")
    if isinstance(cluster, dict) and "topology" in cluster:
        own["cluster"] = {**cluster, "topology": _topology(cluster["topology"])}
    return own


def _topology(value: Any) -> Any:
    if isinstance(value, dict) and "gpu" in value:
        value = {**value, "gpu": _name_of(value["gpu"])}
    return _name_of(value)


def _name_of(value: Any) -> Any:
    is_name = isinstance(value, dict) and value.keys() == {"preset"}
    return value["preset"] if is_name else value
