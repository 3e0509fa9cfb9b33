"""Specs with a text at every place that a spec has, and as a key of every mapping."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from meshwright.api.file_schemas import schema_text
from meshwright.loading.imported import FIELD as HF_CONFIG
from tests.ui.questions import SMALL, Fields

Place = tuple[str | int, ...]

MOST_NESTED = 2
"""Times that a place may be below the same definition: choices hold clusters."""

ANY_KEY = "any"
"""Stands for a key that the writer of a spec chooses."""


@cache
def _places() -> dict[Place, set[str]]:
    """Return the types of every place of a spec: of training, serving or open ones."""
    schema = json.loads(schema_text("spec"))
    found: dict[Place, set[str]] = {("model", HF_CONFIG): {"string"}}
    for place, types in _below(schema, schema["$defs"], (), ()):
        found.setdefault(place, set()).update(types)
    return found


def _below(
    node: Any, definitions: Fields, place: Place, seen: tuple[str, ...]
) -> Iterator[tuple[Place, list[str]]]:
    if not isinstance(node, dict):
        return
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if seen.count(name) == MOST_NESTED:
            return
        seen, node = (*seen, name), {**definitions[name], **node}
    if place:
        types = node.get("type", [])
        yield place, [types] if isinstance(types, str) else types
    inner: list[tuple[Place, Any]] = [
        *(((one,), value) for one, value in node.get("properties", {}).items()),
        *(((), value) for word in ("anyOf", "oneOf") for value in node.get(word, ())),
        *(((i,), value) for i, value in enumerate(node.get("prefixItems", ()))),
        ((0,), node.get("items")),
        ((ANY_KEY,), node.get("additionalProperties")),
    ]
    for step, value in inner:
        yield from _below(value, definitions, (*place, *step), seen)


def names() -> list[Place]:
    """Return the places that hold text and never a number."""
    numbers = {"number", "integer", "boolean"}
    every = _places().items()
    return [one for one, types in every if "string" in types and not types & numbers]


def spec_with(place: Place, value: str) -> Fields:
    """Return a spec with a text at a place; what is missing around it is made."""
    spec = copy.deepcopy(SMALL)
    if place[0] == "cluster" and place[1:2] not in [("count",), ("overrides",)]:
        spec["cluster"] = {}
    if place[0] == "inference":
        del spec["training"]
    assert _put(spec, place, value)
    return spec


def others_with(value: str) -> Iterator[Fields]:
    """Yield specs with a text at all other places, and as a key of every mapping.

    Many are in one spec, but for those that cannot stand beside each other.
    """
    every, known = _places(), set(names())
    keys = {(*one[:-1], value) for one in every if one[1:] and one[-1] != 0}
    left = [*(one for one in every if one not in known), *sorted(keys, key=str)]
    while left:
        spec = spec_with(left[0], value)
        group = _group(left[0])
        left = [
            one
            for one in left[1:]
            if _group(one) != group or not _put(spec, one, value)
        ]
        yield spec


def _group(place: Place) -> Place:
    """Return the part of a place in which names are resolved together."""
    ends = [i for i, step in enumerate(place) if step in ("machine", "topology")]
    return place[: ends[-1] + 1] if ends else place[:1]


def _put(spec: Fields, place: Place, value: str) -> bool:
    """Put a text at a place; return False where something else is in the way."""
    node: Any = spec
    for step, after in pairwise(place):
        kind = list if isinstance(after, int) else dict
        inner = _at(node, step)
        if not isinstance(inner, kind):
            if inner == value or isinstance(inner, dict | list):
                return False
            inner = node[step] = kind()
        node = inner
    if isinstance(_at(node, place[-1]), dict | list) and len(place) > 1:
        return False
    node[place[-1]] = value
    return True


def _at(node: Any, step: str | int) -> Any:
    """Return what is in a mapping or list, which is made long enough; else None."""
    if isinstance(node, dict):
        return node.get(step)
    node.extend([None] * (int(step) + 1 - len(node)))
    return node[step]
