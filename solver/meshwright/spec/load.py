"""Turns a file, or the name of a bundled spec, into a Spec, or says what is wrong."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.spec.pins import Pins
from meshwright.spec.source import Document, FieldPath, Where, parse_yaml, read_yaml
from meshwright.spec.spec import Spec


def load_spec(name: str, pins: list[str] | None = None) -> Spec:
    """Return the spec in a file or bundled under `name`, with `pins` ('tp=4') added.

    Raises:
        SpecError: names the file, line, field, value and what is accepted.
    """
    path = catalog.locate("specs", name, Path())
    document = read_yaml(path)
    _require_mapping(document, (), "a spec with model, cluster and training")
    for pin in pins or []:
        _add_pin(document, pin)
    _resolve(document, path.parent)
    try:
        return Spec.model_validate(document.data)
    except ValidationError as error:
        lines = [_sentence(document, detail) for detail in error.errors()]
        raise SpecError("\n".join(lines)) from None


def _resolve(document: Document, near: Path) -> None:
    """Replace the names of presets, topologies and GPUs by what they stand for."""
    _resolve_field(document, ("model",), "preset", "specs/models", near)
    if isinstance(document.data.get("cluster"), str):
        document.data["cluster"] = {"topology": document.data["cluster"]}
    if not isinstance(document.data.get("cluster"), dict):
        return
    _resolve_field(document, ("cluster", "topology"), "preset", "topologies", near)
    topology = document.data["cluster"].get("topology")
    if isinstance(topology, dict):
        gpu = ("cluster", "topology", "gpu")
        _resolve_field(document, gpu, "preset", "topologies/gpus", near)


def _resolve_field(
    document: Document, path: FieldPath, key: str, kind: str, near: Path
) -> None:
    """Replace text, or a mapping with a preset and overrides, by the preset's data."""
    parent = document.data
    for step in path[:-1]:
        parent = parent[step]
    value = parent.get(path[-1])
    overrides = dict(value) if isinstance(value, dict) else {}
    name = overrides.pop(key, None) if isinstance(value, dict) else value
    if not isinstance(name, str):
        return
    try:
        preset = read_yaml(catalog.locate(kind, name, near))
    except SpecError as error:
        at = f"{document.where(path)}: {'.'.join(map(str, path))}: "
        raise SpecError(at + str(error)) from None
    _require_mapping(preset, (), f"the fields of {path[-1]}")
    written = {p: w for p, w in document.places.items() if p[: len(path)] == path}
    document.graft(path, preset)
    parent[path[-1]] = preset.data | overrides
    document.places.update(
        {p: w for p, w in written.items() if p == path or p[len(path)] in overrides}
    )


def _add_pin(document: Document, pin: str) -> None:
    name, equals, text = pin.partition("=")
    place = Where(f"--pin {pin}")
    if not equals or name not in Pins.model_fields:
        raise SpecError(
            f"{place}: expected FIELD=VALUE with one of the fields "
            + ", ".join(Pins.model_fields)
        )
    value = parse_yaml(text, str(place))
    value.places = dict.fromkeys(value.places, place)
    document.data.setdefault("pins", {})
    _require_mapping(document, ("pins",), "plan fields")
    document.graft(("pins", name), value)


def _require_mapping(document: Document, path: FieldPath, expected: str) -> None:
    value = document.data
    for step in path:
        value = value[step]
    if not isinstance(value, dict):
        field = f" {'.'.join(map(str, path))}:" if path else ""
        raise SpecError(
            f"{document.where(path)}:{field} {_shown(value)} is not a mapping; "
            f"expected {expected}"
        )


def _sentence(document: Document, detail: ErrorDetails) -> str:
    path = tuple(detail["loc"])
    field = ".".join(map(str, path))
    where = document.where(path)
    if detail["type"] == "missing":
        return f"{where}: {field}: missing"
    if detail["type"] == "extra_forbidden":
        return f"{where}: {field}: unknown field; {_accepted_fields(path)}"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    value = detail["input"]
    shown = "" if isinstance(value, dict) else f"{_shown(value)}: "
    return f"{where}: {field}: {shown}{message}" if field else f"{where}: {message}"


def _accepted_fields(path: FieldPath) -> str:
    """Return the fields that the schema has at the place of an unknown one."""
    model: Any = Spec
    for step in path[:-1]:
        if isinstance(step, int):
            continue
        model = _model_of(model.model_fields[step].annotation)
    fields = list(model.model_fields)
    close = difflib.get_close_matches(str(path[-1]), fields, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}accepted: {', '.join(fields)}"


def _model_of(annotation: Any) -> Any:
    """Return the model inside an annotation such as `tuple[Level, ...] | None`."""
    if hasattr(annotation, "model_fields"):
        return annotation
    inner = [_model_of(part) for part in getattr(annotation, "__args__", ())]
    return next((model for model in inner if model is not None), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
