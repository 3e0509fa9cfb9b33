"""A question as the page asks it: a spec as JSON, and edits of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.loading.load import load_question, open_sections, resolve_names
from meshwright.loading.sources import BundledFiles, open_source
from meshwright.reading.guard import MAX_DEPTH, SPECS
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from meshwright.ui.bodies import levels
from meshwright.ui.edits import Edit, Fields, edited

FILES = BundledFiles(
    "the page takes names of bundled files and reads no others; paste what a file has"
)
"""What names may mean in a spec that is sent to the page."""

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
    if edits := _edits(body.get("edits", [])):
        fields = edited(fields, _resolved(fields), edits)
        check_size(fields)
    notes: list[str] = []
    spec = load_question(fields, notes=notes, files=FILES)
    if isinstance(spec, ServingSpec):
        told = "this page is for training; `meshwright solve` answers specs of serving"
        raise SpecError(f"inference: {told}")
    if isinstance(spec, OpenSpec):
        told = "this page asks about one cluster and one batch"
        raise SpecError(f"open numbers: {told}; `meshwright solve` chooses among many")
    return Question(as_listed(fields), spec, tuple(notes))


def check_size(value: Any) -> None:
    """Refuse data that nests too deep, or that has too many values.

    Raises:
        SpecError: names the limit.
    """
    values = 0
    for depth, level in enumerate(levels(value), start=1):
        values += len(level)
        if depth > MAX_DEPTH:
            raise SpecError(f"spec: expected at most {MAX_DEPTH} levels of nesting")
        if values > SPECS.most_values:
            raise SpecError(f"spec: expected at most {SPECS.most_values:,} values")


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
    document = open_source(fields, "specs", FILES)
    open_sections(document)
    resolve_names(document, FILES)
    assert isinstance(document.data, dict)
    return document.data


def as_listed(fields: Fields) -> Fields:
    """Return the fields of a valid spec with names as the lists of the page have them.

    They are at `model`, `cluster.topology` and `cluster.topology.gpu`.
    """
    cluster = fields["cluster"]
    cluster = {"topology": cluster} if isinstance(cluster, str) else {**cluster}
    if "machine" in cluster:
        cluster = {"topology": cluster.pop("machine"), **cluster}
    if "topology" in cluster:
        topology = _listed("topologies", cluster["topology"])
        if isinstance(topology, dict) and "gpu" in topology:
            topology = {**topology, "gpu": _listed(catalog.GPUS, topology["gpu"])}
        cluster["topology"] = topology
    model = _listed(catalog.MODELS, fields["model"])
    return {**fields, "model": model, "cluster": cluster}


def _listed(kind: str, value: Any) -> Any:
    """Return a name, or a mapping with a preset, under the bundled name."""
    if isinstance(value, str):
        return catalog.bundled(kind, value).stem
    if not isinstance(value, dict) or "preset" not in value:
        return value
    name = catalog.bundled(kind, value["preset"]).stem
    return name if value.keys() == {"preset"} else {**value, "preset": name}
