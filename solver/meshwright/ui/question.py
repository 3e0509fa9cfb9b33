"""A question as the page asks it: a spec as JSON, edits of it, and pasted text.

An edit is a path and its new value, from a slider, a list or a repair. Pasted text is
told by its content, and put into the spec as fields.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request

from meshwright import catalog
from meshwright.api.options import spec_fields
from meshwright.errors import SpecError
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import decide
from meshwright.imports.logs.training_log import read_log
from meshwright.imports.machines.graph import to_graph
from meshwright.imports.registry import (
    FabricImporter,
    MachineImporter,
    detect,
    detect_log,
    importer,
)
from meshwright.imports.switch_levels import stack
from meshwright.imports.text import mapping, unfenced
from meshwright.loading.asked import gpu_in
from meshwright.loading.gpus_alone import named_cluster, network_of
from meshwright.loading.load import load_question, open_sections, resolve_names
from meshwright.loading.plan_text import as_pins, sizes_of
from meshwright.loading.sources import BundledFiles, open_source, resolved
from meshwright.reading.document import FieldPath, field_path, shown, validated
from meshwright.reading.yaml_and_csv import MAX_DEPTH, SPECS, parse_yaml
from meshwright.results.outcome_parts import Repair
from meshwright.spec.gpu import Gpu
from meshwright.spec.model import WHOLE_MODEL
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Topology

Fields = dict[str, Any]

RULES = "rules."
"""How the path of a user's rule starts; its name follows."""

_ARROW = " -> "
_SECOND = ", recompute_layers: "
"""Before the second value of a repair of `recompute`."""


class Edit(NamedTuple):
    """A field of a spec, by its path, and its new value; None removes the field."""

    path: str
    value: Any


FILES = BundledFiles(
    "the page takes names of bundled files and reads no others; paste what a file has"
)
"""The files that names may mean in a spec that the page sends."""

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
        if any(edit.path.startswith("cluster.") for edit in edits):
            fields = _on_machines(fields, edits)
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


def _on_machines(fields: Fields, edits: Iterable[Edit]) -> Fields:
    """Return a spec of GPUs alone with the machines that these sit in.

    What is edited of a cluster are machines: their number, and what is in them. Where
    it is the number alone, they stay what such GPUs usually sit in.
    """
    cluster = fields.get("cluster")
    if not isinstance(cluster, str | dict) or "gpu" not in named_cluster(cluster):
        return fields
    spec = load_question(fields, files=FILES)
    if not isinstance(spec, Spec):
        return fields
    gpu, count = spec.cluster.topology.gpu.name, spec.cluster.count
    if gpu in catalog.names(catalog.GPUS) and all(
        edit.path in ("cluster", "cluster.count")
        for edit in edits
        if edit.path.startswith("cluster")
    ):
        beside = {
            name: value
            for name, value in named_cluster(cluster).items()
            if name not in ("gpu", "count", "per_host")
        }
        each = f"{spec.cluster.gpus // count}x{gpu}"
        return {**fields, "cluster": {**beside, "topology": each, "count": count}}
    return {**fields, "cluster": _machines(spec)}


def _machines(spec: Spec) -> Fields:
    """Return the machines of a cluster as a spec has them; bundled ones by name."""
    topology, count = spec.cluster.topology, spec.cluster.count
    if named := catalog.meant("topologies", topology.name):
        bundled = resolved(NAME, "topology", named, FILES)
        if validated(bundled, Topology, bundled.value(("topology",))) == topology:
            return {"topology": named, "count": count}
    told = topology.model_dump(mode="json", by_alias=True, exclude_unset=True)
    gpu = catalog.meant(catalog.GPUS, topology.gpu.name)
    return {"topology": {**told, **({"gpu": gpu} if gpu else {})}, "count": count}


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
    """Return the fields with every name replaced by its data."""
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
    cluster = named_cluster(cluster)
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


def edits_of(repair: Repair) -> list[Edit]:
    """Return the edits of a repair, whose text is `PATH: OLD -> NEW` with YAML."""
    return [edit for text in repair.edits for edit in _edits_in(text)]


def _edits_in(text: str) -> list[Edit]:
    path, _, change = text.partition(": ")
    value, second, layers = change.rpartition(_ARROW)[2].partition(_SECOND)
    edits = [_edit(path, value)]
    return [*edits, _edit("recompute_layers", layers)] if second else edits


def _edit(path: str, value: str) -> Edit:
    whole = f"pins.{path}" if path in Pins.model_fields else path
    return Edit(whole, parse_yaml(value, path, has_lines=False).data)


def edited(fields: Fields, resolved: Fields, edits: Iterable[Edit]) -> Fields:
    """Return the fields of a spec with edits.

    Args:
        fields: The spec as written.
        resolved: The same with every name replaced by what it stands for.
        edits: The edits, in their order.

    Raises:
        SpecError: a path is none of a spec.
    """
    changed = copy.deepcopy(fields)
    for edit in edits:
        if edit.path.startswith(RULES):
            _drop_rule(changed, edit.path.removeprefix(RULES))
        else:
            _put(changed, resolved, edit)
    return changed


def _drop_rule(fields: Fields, name: str) -> None:
    rules = fields.get("rules")
    if isinstance(rules, list):
        numbered = enumerate(rules, start=1)
        kept = [rule for number, rule in numbered if _rule_name(rule, number) != name]
        fields["rules"] = kept


def _rule_name(rule: Any, number: int) -> Any:
    """Return the name of a rule; one without has that of its place."""
    named = rule.get("name") if isinstance(rule, dict) else None
    return named or f"rule_{number}"


def _put(fields: Fields, resolved: Any, edit: Edit) -> None:
    """Set the value at a path, below copies of what names stand for."""
    steps = field_path(edit.path)
    if not steps:
        raise SpecError(f"{shown(edit.path)}: no path of a spec")
    if len(steps) > MAX_DEPTH:
        told = f"{len(steps):,} steps; expected at most {MAX_DEPTH}"
        raise SpecError(f"{shown(edit.path)}: {told}")
    node: Any = fields
    for step, known in zip(steps[:-1], _known(resolved, steps), strict=True):
        node = _opened(node, step, known, edit.path)
    _check_step(node, steps[-1], edit.path)
    if edit.value is not None:
        node[steps[-1]] = edit.value
    elif isinstance(node, dict):
        node.pop(steps[-1], None)


def _known(resolved: Any, steps: FieldPath) -> list[Any]:
    """Return the resolved values along a path, None from where there is none."""
    values = []
    for step in steps[:-1]:
        try:
            resolved = resolved[step]
        except (KeyError, IndexError, TypeError):
            resolved = None
        values.append(resolved)
    return values


def _opened(node: Any, step: str | int, known: Any, path: str) -> Any:
    """Return the mapping or list below a node, made where it is missing."""
    _check_step(node, step, path)
    value = node.get(step) if isinstance(node, dict) else node[step]
    if not isinstance(value, dict | list):
        node[step] = _spelled_out(step, value, known)
    return node[step]


def _spelled_out(step: str | int, value: Any, known: Any) -> Any:
    """Return a mapping or list that stands for a value some field of which changes."""
    if isinstance(value, str) and isinstance(known, dict):
        return {"topology" if step == "cluster" else "preset": value}
    name = known.get("name") if step == "gpu" and isinstance(known, dict) else None
    if gpu := catalog.meant(catalog.GPUS, str(name or "")):
        return {"preset": gpu}
    return copy.deepcopy(known) if isinstance(known, dict | list) else {}


def _check_step(node: Any, step: str | int, path: str) -> None:
    """Refuse a step that leads nowhere; a machine is named as a topology from now on.

    Raises:
        SpecError: the node lacks the field.
    """
    if isinstance(node, dict) and step == "topology" and "machine" in node:
        node[step] = node.pop("machine")
    is_key = isinstance(node, dict) and isinstance(step, str)
    if is_key or (isinstance(node, list) and step in range(len(node))):
        return
    raise SpecError(f"{shown(path)}: no path of this spec")


MOST_BYTES = 1_000_000
"""Most bytes of a request."""

MOST_LEVELS = 128
"""Most levels of nesting in a request: far from where Python's recursion ends."""


async def json_object(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request has.

    Raises:
        HTTPException: it has something else, or too much.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Content-Type: expected application/json")
    try:
        found = json.loads(await _bytes(request), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise HTTPException(400, "expected JSON") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "expected a JSON object")
    for depth, _ in enumerate(levels(found), start=1):
        if depth > MOST_LEVELS:
            told = f"expected JSON with at most {MOST_LEVELS} levels of nesting"
            raise HTTPException(400, told)
    return found


def levels(value: Any) -> Iterator[list[Any]]:
    """Yield a value alone, then the values inside it, level by level."""
    level = [value]
    while level:
        yield level
        level = [inner for value in level for inner in _inner(value)]


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


async def _bytes(request: Request) -> bytes:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise HTTPException(413, f"expected at most {MOST_BYTES:,} bytes")
    return content


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which are no JSON."""
    raise ValueError(name)


NAME = "pasted"

KINDS = (
    "config.json of a model, what nvidia-smi topo -m and other tools print of a "
    "machine or a network, what starts a training framework, the log of a run, a spec "
    "or a topology"
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
    text = unfenced(text)
    if (kind := detect_log(text)) is not None:
        log = read_log(text, NAME)
        pasted = _launch(kind, log.launch, fields)
        return replace(pasted, notes=[*log.told(), *log.notes, *pasted.notes])
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
    spec["training"] = {
        **mapping(fields.get("training")),
        **mapping(found.get("training")),
    }
    notes = launch.notes()
    model = mapping(found.get("model"))
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
