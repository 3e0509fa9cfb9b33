"""Replaces the names of presets in a spec by the fields of the presets."""

from __future__ import annotations

from pathlib import Path

from meshwright.errors import SpecError
from meshwright.loading.named_files import USER_FILES, Files
from meshwright.reading.document import Document, FieldPath, Where
from meshwright.reading.messages import shown
from meshwright.reading.yaml_text import read_yaml


def resolved(option: str, field: str, name: str, files: Files = USER_FILES) -> Document:
    """Return the topology or GPU of a name, as {field: its data}.

    Raises:
        SpecError: names the option, or the file, line and field.
    """
    document = Document({field: name}, {(): Where(option)})
    kinds = {"topology": "topologies", "gpu": "topologies/gpus"}
    resolve_field(document, (field,), kinds[field], files)
    if field == "topology":
        resolve_field(document, (field, "gpu"), kinds["gpu"], files)
    return document


def resolve_machine(document: Document, path: FieldPath, files: Files) -> None:
    """Replace names in a mapping with a topology, or a machine, which is one too."""
    parent = document.value(path)
    if not isinstance(parent, dict):
        return
    field: FieldPath = (*path, "topology")
    if "machine" in parent:
        at = document.where((*path, "machine"))
        if "topology" in parent:
            name = document.name((*path, "machine"))
            raise SpecError(f"{at}: {name}: given beside a topology; keep one")
        parent["topology"] = parent.pop("machine")
        document.places[field] = at
        document.renamed[field] = (*path, "machine")
    resolve_field(document, field, "topologies", files)
    if isinstance(parent.get("topology"), dict):
        resolve_field(document, (*field, "gpu"), "topologies/gpus", files)


def resolve_field(document: Document, path: FieldPath, kind: str, files: Files) -> None:
    """Replace text, or a mapping with a preset and overrides, by the preset's data.

    A relative path starts in the folder of the file in which it is written.
    """
    parent, field = document.value(path[:-1]), str(path[-1])
    value = parent.get(field)
    overrides = dict(value) if isinstance(value, dict) else {}
    written = (*path, "preset") if "preset" in overrides else path
    name = overrides.pop("preset") if "preset" in overrides else value
    if written != path and not isinstance(name, str):
        at = f"{document.where(written)}: {document.name(written)}"
        raise SpecError(f"{at}: {shown(name)}: expected a name or a file")
    if not isinstance(name, str):
        return
    preset, here = (
        _read_preset(document, written, name, kind, files),
        document.where(path),
    )
    require_mapping(preset, (), f"the fields of {field}")
    places = {p: w for p, w in document.places.items() if p[: len(path)] == path}
    document.graft(path, preset)
    parent[field] = preset.data | overrides
    for place, where in places.items():
        if place[len(path) : len(path) + 1] and place[len(path)] in overrides:
            document.places[place] = where
    if overrides:
        document.places[path] = here


def _read_preset(
    document: Document, written: FieldPath, name: str, kind: str, files: Files
) -> Document:
    here = document.where(written)
    try:
        path = files.named(kind, name, Path(here.file).parent)
    except SpecError as error:
        raise SpecError(f"{here}: {document.name(written)}: {error}") from None
    return read_yaml(path)


def require_mapping(document: Document, path: FieldPath, expected: str) -> None:
    """Refuse a value at a path that is no mapping.

    Raises:
        SpecError: names the place, the value and what is expected.
    """
    value = document.value(path)
    if not isinstance(value, dict):
        field = f" {document.name(path)}:" if path else ""
        at = f"{document.where(path)}:{field}"
        raise SpecError(f"{at} {shown(value)}: expected {expected}, as a mapping")
