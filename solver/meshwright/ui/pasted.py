"""Text that somebody pastes: told by its content, and put into the spec as fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright import catalog
from meshwright.api.options import spec_fields
from meshwright.errors import SpecError
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import decide
from meshwright.imports.machines.graph import to_graph
from meshwright.imports.registry import (
    FabricImporter,
    MachineImporter,
    detect,
    importer,
)
from meshwright.imports.switch_levels import stack
from meshwright.loading.asked import gpu_in
from meshwright.loading.gpus_alone import network_of
from meshwright.loading.plan_text import as_pins, sizes_of
from meshwright.loading.sources import resolved
from meshwright.reading.document import validated
from meshwright.reading.yaml_and_csv import parse_yaml
from meshwright.spec.gpu import Gpu
from meshwright.spec.model import WHOLE_MODEL
from meshwright.spec.spec import Spec
from meshwright.ui.question import FILES, Fields

NAME = "pasted"

KINDS = (
    "config.json of a model, what nvidia-smi topo -m and other tools print of a "
    "machine or a network, what starts a training framework, a spec or a topology"
)


@dataclass
class Pasted:
    """The fields of a spec after something was pasted, and notes on it."""

    fields: Fields
    kind: str
    notes: list[str] = field(default_factory=list)


def paste(text: str, fields: Fields, spec: Spec | None, gpu: str | None) -> Pasted:
    """Return a spec with the fields that a pasted text has.

    Args:
        text: What was pasted.
        fields: The present spec, as written.
        spec: The same, where it is one.
        gpu: The GPU of a machine whose text does not say it.

    Raises:
        SpecError: the text is of no known kind, or cannot be read.
    """
    kind = detect(text, "models", "machines", "fabrics", "launches")
    if kind is None:
        return _yaml(text, fields)
    reader = importer(kind)
    facts = reader.parse(text, NAME)
    if isinstance(reader, MachineImporter):
        found, notes = _machine(reader, facts, text, gpu)
        return Pasted({**fields, "cluster": found}, kind, notes)
    if isinstance(reader, FabricImporter):
        return _fabric(kind, reader, facts, fields, spec)
    if isinstance(facts, Launch):
        return _launch(kind, facts, fields)
    model = {"name": NAME, **facts.fields}
    return Pasted({**fields, "model": model}, kind, list(facts.notes))


def _machine(
    reader: MachineImporter[Any], facts: Any, text: str, gpu: str | None
) -> tuple[Fields, list[str]]:
    """Return the cluster of one machine, with a network beside it for more of them."""
    if reader.has_machine is not None and not reader.has_machine(facts):
        raise SpecError(f"{NAME}: does not say how the GPUs of the machine are joined")
    named = reader.gpu_name(facts) if reader.gpu_name is not None else ""
    named = named or gpu_in(text) or gpu or ""
    if not named:
        raise SpecError(f"{NAME}: does not say which GPU it is; choose it beside it")
    name = catalog.bundled(catalog.GPUS, named).stem
    document = resolved(NAME, "gpu", name, FILES)
    model = validated(document, Gpu, document.value(("gpu",)))
    imported = to_graph(reader.to_machine(facts, model), model)
    topology = {"name": NAME, "gpu": name, **imported.fields}
    notes = [f"taken to have {name}", *imported.notes]
    if "scale_out" not in topology:
        topology["scale_out"] = network_of(name)
        speed = topology["scale_out"]["gb_s"]
        notes.append(f"assumed NICs of {speed} to join several of these machines")
    return {"topology": topology, "count": 1}, notes


def _fabric(
    kind: str,
    reader: FabricImporter[Any],
    facts: Any,
    fields: Fields,
    spec: Spec | None,
) -> Pasted:
    """Return the spec with the machine that it has below the switches of a text."""
    if spec is None or spec.cluster.parts:
        raise SpecError(f"{NAME}: says what joins machines; choose a machine first")
    imported = stack(reader.to_levels(facts), spec.cluster.topology)
    topology = spec.cluster.topology.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude={"scale_out"}
    )
    cluster = {"topology": {**topology, "name": NAME, **imported.fields}}
    return Pasted({**fields, "cluster": cluster}, kind, list(imported.notes))


def _launch(kind: str, launch: Launch, fields: Fields) -> Pasted:
    """Return the spec with the framework, the job and the plan of a launch."""
    decided = decide(launch, sizes_of(launch))
    as_pins(launch, decided)
    found = spec_fields(launch, decided)
    spec = {**fields, **found}
    spec["training"] = {**_mapping(fields, "training"), **_mapping(found, "training")}
    notes = launch.notes()
    model = _mapping(found, "model")
    if named := launch.model_note():
        notes.append(named)
    if model.keys() >= {*WHOLE_MODEL}:
        spec["model"] = {"name": NAME, **model}
    elif launch.preset is None and "model" in fields:
        spec["model"] = fields["model"]
        notes.append("does not say all of the model, so that the chosen one stays")
    if gpus := launch.value("gpus"):
        notes.append(f"starts {gpus} GPUs; choose a cluster of as many")
    return Pasted(spec, kind, notes)


def _mapping(fields: Mapping[str, Any], name: str) -> Fields:
    section = fields.get(name)
    return section if isinstance(section, dict) else {}


def _yaml(text: str, fields: Fields) -> Pasted:
    """Return the spec, or the topology, that a text in YAML is."""
    data = parse_yaml(text, NAME).data
    if not isinstance(data, dict):
        raise SpecError(f"{NAME}: of no known kind; accepted: {KINDS}")
    if "levels" in data or "nodes" in data:
        spec = {**fields, "cluster": {"topology": data, "count": 1}}
        return Pasted(spec, "topology")
    if "model" not in data and "cluster" not in data:
        raise SpecError(f"{NAME}: of no known kind; accepted: {KINDS}")
    return Pasted(data, "spec")
