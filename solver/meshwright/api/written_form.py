"""Turns schemas of resolved fields into schemas of what files may hold.

Pydantic knows fields as they are after names are resolved and single values are made
lists. A file may hold a bundled name instead of a mapping, a `preset` with some further
fields, one value instead of a list, or the name of a file of another tool.
"""

from __future__ import annotations

from typing import Any

from meshwright.imports.registry import kinds

Schema = dict[str, Any]

NAMED = {"type": "string", "description": "A bundled name, or the path of a file."}

PRESET = {"type": "string", "description": "A bundled name, or a file, to start from."}

COUNT = {"type": "integer", "minimum": 0}


def ref(name: str) -> Schema:
    """Return a reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def as_written(schema: Schema) -> Schema:
    """Return the schema of files from the schema of resolved fields."""
    definitions = schema.get("$defs", {})
    for name, change in _CHANGES.items():
        if name in definitions:
            definitions[name] = change(definitions[name])
    return {**_one_or_several(schema), "$defs": _one_or_several(definitions)}


def named(name: str) -> Schema:
    """Return the schema of a field that takes a name, or a definition's fields."""
    return {"anyOf": [NAMED, ref(name)]}


def _with_preset(definition: Schema) -> Schema:
    """Return a mapping that may start from a preset; without one all is required."""
    entry = {**definition, "properties": {"preset": PRESET, **definition["properties"]}}
    required = entry.pop("required", [])
    lacks_preset = {"not": {"required": ["preset"]}}
    return {**entry, "if": lacks_preset, "then": {"required": required}}


def _model(definition: Schema) -> Schema:
    """Return a model whose derived fields may be left out; `Model` fills them in."""
    required = set(definition["required"]) - {"n_kv_heads", "head_dim"}
    entry = {
        **definition,
        "required": sorted(required, key=definition["required"].index),
    }
    return _with_preset(entry)


def _topology(definition: Schema) -> Schema:
    properties = {**definition["properties"], "gpu": named("Gpu")}
    return _with_preset({**definition, "properties": properties})


def _part(definition: Schema) -> Schema:
    properties = {**definition["properties"], **_machines()}
    entry = {**definition, "properties": properties, "required": []}
    return {**entry, "anyOf": [{"required": ["topology"]}, {"required": ["machine"]}]}


def _cluster(definition: Schema) -> Schema:
    """Return a cluster, which names its machine or files of other tools."""
    files = {
        kind: {"type": "string", "description": f"A file that `{kind}` is read from."}
        for kind in kinds("machines", "fabrics")
    }
    beside = {"gpu": named("Gpu"), "scale_out": ref("ScaleOut"), "host": ref("Host")}
    properties = {**definition["properties"], **_machines(), **files, **beside}
    return {**definition, "properties": properties}


def _machines() -> Schema:
    return {"topology": named("Topology"), "machine": named("Topology")}


def _range(definition: Schema) -> Schema:
    """Return a pin of whole numbers: one, several, or from the least to the most."""
    ends = {"min": COUNT, "max": COUNT}
    span = {"type": "object", "properties": ends, "additionalProperties": False}
    forms = [COUNT, {"type": "array", "items": COUNT, "minItems": 1}, span]
    return {"description": definition["description"], "anyOf": forms}


_CHANGES = {
    "Cluster": _cluster,
    "Gpu": _with_preset,
    "Model": _model,
    "Part": _part,
    "Range": _range,
    "Topology": _topology,
}
"""By name of a definition, the function that returns its form in files."""


def _one_or_several(schema: Any) -> Any:
    """Return a schema in which a list of words may be a single word instead."""
    if isinstance(schema, list):
        return [_one_or_several(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    part = {name: _one_or_several(value) for name, value in schema.items()}
    items = part.get("items")
    if (
        part.get("type") != "array"
        or not isinstance(items, dict)
        or "enum" not in items
    ):
        return part
    words = {name: part.pop(name) for name in ("type", "items")}
    return {**part, "anyOf": [items, {**words, "minItems": 1}]}
