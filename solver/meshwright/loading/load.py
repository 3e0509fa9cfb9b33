"""Turns a file, or the name of a bundled spec, into a Spec, or says what is wrong."""

from __future__ import annotations

import difflib
from pathlib import Path

from pydantic import BaseModel, ValidationError

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.loading.imported_cluster import fill, take_sources
from meshwright.reading.messages import explain, shown
from meshwright.reading.places import Document, FieldPath, Where
from meshwright.reading.yaml_text import parse_yaml, read_yaml
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.pins import Pins
from meshwright.spec.serving import Question, ServingSpec
from meshwright.spec.spec import Spec

_OPTIONAL = ("limits", "pins", "run")
"""Sections that may be left empty."""

NO_TRAINING = ": training: missing;"
OR_INFERENCE = "; or inference, to serve the model"


def load_spec(
    name: str, pins: list[str] | None = None, notes: list[str] | None = None
) -> Spec:
    """Return the spec in a file or bundled under `name`, with `pins` ('tp=4') added.

    Args:
        name: of the file, or a bundled name.
        pins: to add to those of the spec.
        notes: gets what files of other tools leave out and was assumed for them.

    Raises:
        SpecError: names the file, line, field, value and what is accepted.
    """
    document = read_spec(name, pins, notes)
    refuse_inference(document)
    try:
        return Spec.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(explain(document, error, Spec)) from None


def refuse_inference(document: Document) -> None:
    """Refuse a spec of serving where one of training is needed.

    Raises:
        SpecError: the spec has the section `inference`.
    """
    if "inference" in document.data:
        at = document.where(("inference",))
        raise SpecError(f"{at}: inference: this command is for specs with training")


def load_question(
    name: str, pins: list[str] | None = None, notes: list[str] | None = None
) -> Question:
    """Return a spec of training or of serving, whichever the file has.

    Raises:
        SpecError: see `load_spec`; or there are both sections, or neither.
    """
    document = read_spec(name, pins, notes)
    schema = _schema(document)
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        lines = explain(document, error, schema).splitlines()
        told = [own + OR_INFERENCE * (NO_TRAINING in own) for own in lines]
        raise SpecError("\n".join(told)) from None


def _schema(document: Document) -> type[Spec] | type[ServingSpec]:
    """Return the schema that a spec's section asks for.

    Raises:
        SpecError: there are both, or neither.
    """
    if "inference" not in document.data:
        return Spec
    if "training" in document.data:
        at = document.where(("inference",))
        other = document.where(("training",))
        raise SpecError(f"{at}: inference: given beside training ({other}); keep one")
    return ServingSpec


def read_spec(
    name: str, pins: list[str] | None = None, notes: list[str] | None = None
) -> Document:
    """Return the data of a spec, every name in it resolved; see `load_spec`."""
    document = read_yaml(catalog.locate("specs", name, Path()))
    open_sections(document)
    for pin in pins or []:
        document.data.setdefault("pins", {})
        _require_mapping(document, ("pins",), "plan fields")
        add_pin(document, pin, ("pins",), "--pin")
    assumed = resolve_names(document)
    if notes is not None:
        notes += assumed
    return document


def open_sections(document: Document) -> None:
    """Make empty sections of a spec mappings.

    Raises:
        SpecError: it is no spec at all.
    """
    _require_mapping(
        document, (), "a spec with model, cluster and training or inference"
    )
    for section in _OPTIONAL:
        if section in document.data and document.data[section] is None:
            document.data[section] = {}


def resolve_names(document: Document) -> list[str]:
    """Replace names of presets and files in a spec by what they stand for.

    Returns:
        What was assumed on the way.

    Raises:
        SpecError: there is no such preset, or no such file.
    """
    _resolve_field(document, ("model",), "specs/models")
    return _resolve_cluster(document)


class _Placed(BaseModel):
    """What of a spec says where it runs; the rest is not looked at."""

    cluster: Cluster


def load_cluster(name: str, notes: list[str] | None = None) -> Cluster:
    """Return the cluster of a spec, or one topology, in a file or bundled.

    A spec is told from a topology by its field `cluster`. What is assumed of files of
    other tools is added to `notes`.

    Raises:
        SpecError: names the file, line, field, value and what is accepted.
    """
    document = read_yaml(catalog.locate("clusters", name, Path()))
    _require_mapping(document, (), "a spec with a cluster, or a topology")
    if "cluster" not in document.data:
        document = document.below(("cluster", "topology"))
    assumed = _resolve_cluster(document)
    if notes is not None:
        notes += assumed
    try:
        return _Placed.model_validate(document.data).cluster
    except ValidationError as error:
        raise SpecError(explain(document, error, _Placed)) from None


def _resolve_cluster(document: Document) -> list[str]:
    """Replace names of topologies, GPUs and files by what they stand for.

    Returns:
        What was assumed on the way.
    """
    cluster = document.data.get("cluster")
    if isinstance(cluster, str):
        cluster = document.data["cluster"] = {"topology": cluster}
    if not isinstance(cluster, dict):
        return []
    sources = take_sources(document)
    _resolve_machine(document, ("cluster",))
    parts = cluster.get("parts")
    for index in range(len(parts) if isinstance(parts, list) else 0):
        _resolve_machine(document, ("cluster", "parts", index))
    return fill(document, sources)


def resolved(option: str, field: str, name: str) -> Document:
    """Return a topology or GPU that the command line names, as {field: its data}.

    Raises:
        SpecError: names the option, or the file, line and field.
    """
    document = Document({field: name}, {(): Where(option)})
    kinds = {"topology": "topologies", "gpu": "topologies/gpus"}
    _resolve_field(document, (field,), kinds[field])
    if field == "topology":
        _resolve_field(document, (field, "gpu"), kinds["gpu"])
    return document


class _Owner(BaseModel):
    """What has a GPU and nothing else."""

    gpu: Gpu


def load_gpu(option: str, name: str) -> Gpu:
    """Return the GPU that an option of the command line names: bundled, or a file.

    Raises:
        SpecError: names the option, or the file, line, field and value.
    """
    document = resolved(option, "gpu", name)
    try:
        return _Owner.model_validate(document.data).gpu
    except ValidationError as error:
        raise SpecError(explain(document, error, _Owner)) from None


def _resolve_machine(document: Document, path: FieldPath) -> None:
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
    _resolve_field(document, field, "topologies")
    if isinstance(parent.get("topology"), dict):
        _resolve_field(document, (*field, "gpu"), "topologies/gpus")


def _resolve_field(document: Document, path: FieldPath, kind: str) -> None:
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
    preset = _read_preset(document, written, name, kind)
    _require_mapping(preset, (), f"the fields of {field}")
    own = {p: w for p, w in document.places.items() if p[: len(path)] == path}
    document.graft(path, preset)
    parent[field] = preset.data | overrides
    for place, where in own.items():
        if place[len(path) : len(path) + 1] and place[len(path)] in overrides:
            document.places[place] = where
    if overrides:
        document.places[path] = own[path]


def _read_preset(
    document: Document, written: FieldPath, name: str, kind: str
) -> Document:
    here = document.where(written)
    try:
        path = catalog.locate(kind, name, Path(here.file).parent)
    except SpecError as error:
        raise SpecError(f"{here}: {document.name(written)}: {error}") from None
    return read_yaml(path)


def add_pin(document: Document, pin: str, path: FieldPath, option: str) -> None:
    """Add 'tp=4' to the fields at a path, as an option of the command line gave it.

    Raises:
        SpecError: it is no field of a plan with a value.
    """
    name, equals, text = pin.partition("=")
    place = Where(f"{option} {shown(pin)[1:-1]}")
    if not equals or not text.strip() or name not in Pins.model_fields:
        raise SpecError(f"{place}: expected FIELD=VALUE; {_near_pin(name)}")
    value = parse_yaml(text, str(place), has_lines=False)
    document.graft((*path, name), value)


def _near_pin(name: str) -> str:
    close = difflib.get_close_matches(name, Pins.model_fields, n=1)
    hint = f"did you mean {close[0]}? " if close and close[0] != name else ""
    return f"{hint}fields: {', '.join(Pins.model_fields)}"


def _require_mapping(document: Document, path: FieldPath, expected: str) -> None:
    value = document.value(path)
    if not isinstance(value, dict):
        field = f" {document.name(path)}:" if path else ""
        at = f"{document.where(path)}:{field}"
        raise SpecError(f"{at} {shown(value)}: expected {expected}, as a mapping")
