"""What JSON and files of 1.x keep: fields may be added, none removed or retyped.

`python -m tests.api.test_held_fields` writes `held_fields.json` anew: by definition of
the schemas, each field with its types, and `?` where an object may lack it. A release
does so for fields that were added; what the test refuses waits for 2.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.api.file_schemas import KINDS, schema_text

HELD = Path(__file__).parents[1] / "data" / "held_fields.json"
PRINTED = "result"
"""The kind of what commands print; files of all others are read."""

Fields = dict[str, dict[str, str]]
"""Types of fields, by definition."""


def fields(kind: str) -> Fields:
    """Return the fields of a schema; those of the file itself stand under its kind."""
    schema = json.loads(schema_text(kind))
    known = {**schema.get("$defs", {}), kind: schema}
    return {name: _fields(one, kind) for name, one in sorted(known.items())}


def _fields(node: dict[str, Any], kind: str) -> dict[str, str]:
    required = node.get("required", ())
    told = {
        name: " ".join(sorted(_types(one, kind))) + "?" * (name not in required)
        for name, one in node.get("properties", {}).items()
    }
    whole = {name: one for name, one in node.items() if name != "properties"}
    return told if told else {"": " ".join(sorted(_types(whole, kind)))}


def _types(node: dict[str, Any], kind: str) -> set[str]:
    """Return the types that a value may have; of words in files, each word."""
    if "$ref" in node:
        return {node["$ref"].rpartition("/")[2]}
    choices = [one for name in ("anyOf", "oneOf") for one in node.get(name, ())]
    if choices:
        return set().union(*(_types(choice, kind) for choice in choices))
    if "enum" in node and kind != PRINTED:
        return {json.dumps(word) for word in node["enum"]}
    types = node.get("type", "any")
    found = {types} if isinstance(types, str) else {*types}
    for name, inner in (("array", "items"), ("object", "additionalProperties")):
        if name in found and isinstance(node.get(inner), dict):
            found.remove(name)
            found |= {f"{name}[{one}]" for one in _types(node[inner], kind)}
    return found


def broken(kind: str, held: Fields, now: Fields) -> Iterator[str]:
    """Yield what a file of 1.0, or a program that reads its JSON, would not stand."""
    for name, before in held.items():
        after = now.get(name, {})
        for field, told in before.items():
            place = f"{kind}: {name}.{field}"
            if field not in after:
                yield f"{place} is gone"
                continue
            old, new = told, after[field]
            wide, narrow = (old, new) if kind == PRINTED else (new, old)
            more = {*narrow.rstrip("?").split(" ")} - {*wide.rstrip("?").split(" ")}
            if more:
                yield f"{place} was {old}, and is {new}"
            if narrow.endswith("?") and not wide.endswith("?"):
                yield f"{place} was {old}, and is {new}"
        added = (
            {}
            if kind == PRINTED
            else {n: t for n, t in after.items() if n not in before}
        )
        yield from (
            f"{kind}: {name}.{field} is new, and files lack it"
            for field, told in added.items()
            if not told.endswith("?")
        )


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_promised_holds(kind: str) -> None:
    held = json.loads(HELD.read_text("utf-8"))
    assert held.keys() == KINDS.keys()
    assert list(broken(kind, held[kind], fields(kind))) == []


PLAN = {"Plan": {"tp": "integer", "mesh": "Mesh null?"}}


@pytest.mark.parametrize(
    ("kind", "now", "told"),
    [
        (PRINTED, {"tp": "integer"}, "Plan.mesh is gone"),
        (PRINTED, {"tp": "number", "mesh": "Mesh null?"}, "is number"),
        (PRINTED, {"tp": "integer?", "mesh": "Mesh null?"}, "is integer?"),
        (PRINTED, {"tp": "integer null", "mesh": "Mesh null?"}, "is integer null"),
        ("spec", {"tp": "string", "mesh": "Mesh null?"}, "is string"),
        ("spec", {"tp": "integer", "mesh": "Mesh null"}, "is Mesh null"),
        ("spec", {"tp": "integer", "mesh": "Mesh?"}, "is Mesh?"),
        ("spec", {**PLAN["Plan"], "pp": "integer"}, "Plan.pp is new"),
    ],
)
def test_what_breaks_a_promise_is_named(
    kind: str, now: dict[str, str], told: str
) -> None:
    (line,) = broken(kind, PLAN, {"Plan": now})
    assert told in line


@pytest.mark.parametrize(
    ("kind", "now"),
    [
        (PRINTED, {"tp": "integer", "mesh": "Mesh", "pp": "integer"}),
        ("spec", {"tp": "integer string?", "mesh": "Mesh null?", "pp": "integer?"}),
    ],
)
def test_what_is_added_breaks_none(kind: str, now: dict[str, str]) -> None:
    assert list(broken(kind, PLAN, {"Plan": now})) == []


def main() -> None:
    """Write the fields anew, a line for each definition."""
    lines = []
    for kind in KINDS:
        found = (f"  {json.dumps(n)}: {json.dumps(f)}" for n, f in fields(kind).items())
        body = ",\n".join(found)
        lines.append(f"{json.dumps(kind)}: {{\n{body}\n}}")
    HELD.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
