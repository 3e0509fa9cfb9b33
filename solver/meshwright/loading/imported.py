"""Models and clusters that files of other tools describe, as fields of a spec."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.registry import detect, importer, kinds
from meshwright.imports.text import read_text
from meshwright.loading.gpus_alone import CARD_HOST_GB_S
from meshwright.loading.sources import Files
from meshwright.reading.document import Document, FieldPath, Where, shown
from meshwright.spec.base import shortened
from meshwright.spec.gpu import Gpu
from meshwright.spec.topology import Topology

CLUSTER, TOPOLOGY = ("cluster",), ("cluster", "topology")

_MOVED = ("gpu", "scale_out", "host")
"""Fields of a topology that are written beside the file of a machine."""


class Source(NamedTuple):
    """A file of another tool, and where the spec names it."""

    kind: str
    path: Path
    place: Where


def take_sources(document: Document, files: Files) -> list[Source]:
    """Remove the files of other tools from the cluster and return them, machine first.

    The fields beside the file of a machine become a topology that lacks its nodes.

    Raises:
        SpecError: the files cannot be combined, or one needs another beside it.
    """
    cluster = document.data["cluster"]
    document.stand_ins[CLUSTER] = ("machine", *kinds("machines", "fabrics"))
    inside, above = (
        [_source(document, kind, files) for kind in cluster if kind in kinds(folder)]
        for folder in ("machines", "fabrics")
    )
    for group in (inside, above):
        for other in group[1:]:
            _refuse(other, f"given beside {group[0].kind}; keep one")
    if inside:
        _open_topology(document, inside[0])
    elif above and not {"machine", "topology"} & cluster.keys():
        told = "says what joins machines, not what is in them; add machine: NAME"
        _refuse(above[0], told)
    sources = [*inside, *above]
    for source in sources:
        del cluster[source.kind]
    return sources


def fill(document: Document, sources: list[Source]) -> list[str]:
    """Put the contents of files into the topology, once the names in it are resolved.

    A GPU or machine that is invalid leaves the topology unchanged: validation of the
    spec says why.

    Returns:
        Notes on what was assumed.

    Raises:
        SpecError: names file and line of what cannot be read.
    """
    notes: list[str] = []
    for source in sources:
        is_machine = source.kind in kinds("machines")
        assumptions = (_fill_machine if is_machine else _fill_levels)(document, source)
        notes += [f"{source.path.name}: {note}" for note in assumptions]
    return notes


def _source(document: Document, kind: str, files: Files) -> Source:
    field = (*CLUSTER, kind)
    place, name = document.where(field), document.value(field)
    if not isinstance(name, str) or not name:
        raise SpecError(f"{place}: cluster.{kind}: {shown(name)}: expected a file")
    path = files.file(name, Path(place.file).parent)
    if path is None:
        raise SpecError(f"{place}: cluster.{kind}: {shown(name)}: {files.no_file}")
    return Source(kind, path, place)


def _refuse(source: Source, sentence: str) -> None:
    raise SpecError(f"{source.place}: cluster.{source.kind}: {sentence}")


def _open_topology(document: Document, source: Source) -> None:
    cluster = document.data["cluster"]
    beside = cluster.get("topology")
    if isinstance(beside, dict) and not beside.keys() - set(_MOVED):
        for field in beside.keys() - cluster.keys():
            _move(document, (*TOPOLOGY, field), (*CLUSTER, field))
        if not beside:
            del cluster["topology"]
    for field in ("machine", "topology"):
        if field in cluster:
            _refuse(source, f"given beside a {field}; keep one")
    if "gpu" not in cluster and (named := _gpu_name(source)):
        cluster["gpu"] = named
        document.places[(*CLUSTER, "gpu")] = Where(str(source.path))
    if "gpu" not in cluster:
        told = "the file does not say which GPU the machine has; add gpu: NAME"
        _refuse(source, told)
    cluster["topology"] = {}
    document.places[TOPOLOGY] = source.place
    for field in _MOVED:
        if field in cluster:
            _move(document, (*CLUSTER, field), (*TOPOLOGY, field))


def _gpu_name(source: Source) -> str:
    """Return the name of the GPUs in a file, where files of its kind have it."""
    from meshwright.imports.read import gpu_name

    with _told_at(source):
        return gpu_name(source.kind, source.path)


def _move(document: Document, old: FieldPath, new: FieldPath) -> None:
    """Move a field to another path, with the places of its values."""
    parent = document.value(old[:-1])
    document.value(new[:-1])[new[-1]] = parent.pop(old[-1])
    for path in [path for path in document.places if path[: len(old)] == old]:
        document.places[new + path[len(old) :]] = document.places.pop(path)


def _fill_machine(document: Document, source: Source) -> tuple[str, ...]:
    from meshwright.imports.read import read_machine

    topology = document.value(TOPOLOGY)
    try:
        gpu = Gpu.model_validate(topology["gpu"])
    except ValidationError:
        return ()
    with _told_at(source):
        imported = read_machine(source.kind, source.path, gpu)
    _put(document, source, {"name": title(source.path), **imported.fields})
    return (*imported.notes, *_fill_rates(topology, gpu))


def _fill_rates(topology: dict[str, Any], gpu: Gpu) -> Iterator[str]:
    """Give a host of which the memory is said the usual rates; yield a note on them."""
    host = topology.get("host")
    if not isinstance(host, dict) or "memory_gib" not in host or not gpu.pcie_gb_s:
        return
    usual = {"pcie_gb_s": gpu.pcie_gb_s, "memory_gb_s": CARD_HOST_GB_S}
    if assumed := {name: rate for name, rate in usual.items() if name not in host}:
        host |= assumed
        told = " and ".join(f"{name} {rate:g}" for name, rate in assumed.items())
        yield f"The host is assumed to have {told}; see cluster.host."


def _fill_levels(document: Document, source: Source) -> tuple[str, ...]:
    from meshwright.imports.read import read_levels

    try:
        topology = Topology.model_validate(document.value(TOPOLOGY))
    except ValidationError:
        return ()
    with _told_at(source):
        imported = read_levels(source.kind, source.path, topology)
    document.value(TOPOLOGY).pop("scale_out", None)
    _put(document, source, imported.fields)
    return imported.notes


def _put(document: Document, source: Source, fields: dict[str, Any]) -> None:
    """Put fields of a topology into the document, with the file as their place."""
    file = Where(str(source.path))
    for name, value in fields.items():
        document.graft((*TOPOLOGY, name), Document(value, {(): file}))


@contextmanager
def _told_at(source: Source) -> Iterator[None]:
    """Prefix errors that do not name the file with the place that names it."""
    try:
        yield
    except SpecError as error:
        if str(error).startswith(f"{Where(str(source.path))}:"):
            raise
        raise SpecError(f"{source.place}: cluster.{source.kind}: {error}") from None


def title(path: Path) -> str:
    """Return the name of the topology that is made of a file."""
    stem = "".join(c for c in path.stem if c.isprintable())[:60]
    return stem if stem.strip("-") else "imported"


MODEL: FieldPath = ("model",)

FIELD = "hf_config"
"""The field of a model that names a config.json."""

CONFIG = "config.json"


def fill_model(document: Document, files: Files) -> list[str]:
    """Replace a config.json that the section `model` names by the fields it stands for.

    Returns:
        Notes on what was assumed.

    Raises:
        SpecError: there is no such file, or its architecture is not supported.
    """
    document.stand_ins[MODEL] = (FIELD,)
    value = document.data.get("model")
    if isinstance(value, dict) and FIELD in value:
        return _fill(document, dict(value), files)
    overrides = dict(value) if isinstance(value, dict) else {"preset": value}
    if isinstance(name := overrides.pop("preset", None), str):
        near = Path(document.where(MODEL).file).parent
        path, is_sure = _config(name, near, files)
        if path is not None and (is_sure or detect(read_text(path), "models")):
            return _graft(document, path, overrides, _places(document))
    return []


def _config(name: str, near: Path, files: Files) -> tuple[Path | None, bool]:
    """Return the file of a name, and whether it is the config.json of a folder."""
    inside = files.file(os.path.join(name, CONFIG), near)
    return inside or files.file(name, near), inside is not None


def _fill(document: Document, value: dict[str, Any], files: Files) -> list[str]:
    name, place = value.pop(FIELD), document.where((*MODEL, FIELD))
    if not isinstance(name, str) or not name:
        raise SpecError(f"{place}: model.{FIELD}: {shown(name)}: expected a file")
    if "preset" in value:
        raise SpecError(f"{place}: model.{FIELD}: given beside a preset; keep one")
    path, _ = _config(name, Path(place.file).parent, files)
    if path is None:
        raise SpecError(f"{place}: model.{FIELD}: {shown(name)}: {files.no_file}")
    return _graft(document, path, value, _places(document))


def _places(document: Document) -> dict[FieldPath, Where]:
    """Return where the fields of the model stand."""
    return {p: w for p, w in document.places.items() if p[:1] == MODEL}


def _graft(
    document: Document,
    path: Path,
    overrides: dict[str, Any],
    places: dict[FieldPath, Where],
) -> list[str]:
    fields, notes = read_model(path)
    document.graft(MODEL, Document({**fields, **overrides}, {(): Where(str(path))}))
    for place, where in places.items():
        if len(place) > 1 and place[1] in overrides:
            document.places[place] = where
    return notes


def read_model(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of the model that a file describes, and notes.

    Raises:
        SpecError: the file cannot be read, or its architecture is not supported.
    """
    text, name = read_text(path), printable(str(path))
    kind = detect(text, "models") or kinds("models")[0]
    read = importer(kind).parse(text, name)
    return {"name": model_name(path), **read.fields}, [
        f"{path.name}: {note}" for note in read.notes
    ]


def model_name(path: Path) -> str:
    """Return the name of the model in a file: of its folder if that says more."""
    name = path.resolve().parent.name if path.name == CONFIG else path.stem
    return shortened(printable(name or "model"))
