"""JSON Schema of all files that Meshwright reads and writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

from pydantic import TypeAdapter

from meshwright.cost.profile import Profile
from meshwright.evidence.runs import Run
from meshwright.imports.registry import kinds
from meshwright.results.comparison import Comparison
from meshwright.results.explanation import Explanation
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import (
    Conflict,
    FrameworkLimits,
    OpenAnswer,
    Repair,
    SolvedModel,
)
from meshwright.results.result import SERVING, TRAINING, answer_schema, plan_schema
from meshwright.results.serving import ServingExplanation, ServingOutcome
from meshwright.results.simulation import Simulation, TraceComparison
from meshwright.results.training_run import RentalAnswer
from meshwright.spec.base import in_every_part
from meshwright.spec.gpu import Gpu
from meshwright.spec.model import Model
from meshwright.spec.open_spec import OPEN_SCHEMA, PriceList
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Topology
from meshwright.sweeps.summary import PrintedSearch
from meshwright.sweeps.sweep import SweepFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"

RESULTS = (
    Outcome
    | ServingOutcome
    | Explanation
    | ServingExplanation
    | Comparison
    | PrintedSearch
    | TraceComparison
    | Simulation
    | RentalAnswer
)
"""The results that `--format json` prints."""


def schema_text(kind: str) -> str:
    """Return the schema of a kind of file, as JSON text."""
    title, build = KINDS[kind]
    head = {"$schema": DIALECT, "$id": f"urn:meshwright:schema:{kind}", "title": title}
    built = {**build(), **head}
    short = in_every_part(built, _without_examples)
    return json.dumps({**head, **short}, indent=1) + "\n"


def _without_examples(part: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the examples of docstrings in its descriptions."""
    if isinstance(told := part.get("description"), str):
        part["description"] = told.partition("\n\nExample:")[0]
    return part


def _spec() -> Schema:
    """Return the schema of a spec, of training or of serving."""
    training = Spec.model_json_schema()
    _open_numbers(training["$defs"])
    return _with_serving(training)


def _with_serving(training: Schema) -> Schema:
    """Return the schema of a spec from that of a spec of training."""
    serving = ServingSpec.model_json_schema()
    properties = {**serving["properties"], **training["properties"]}
    optional = {
        name: {"anyOf": [properties[name], {"type": "null"}]}
        for name in ("limits", "pins", "run")
    }
    whole = {
        "type": "object",
        "description": "One question to Meshwright: `training` or `inference`.",
        "properties": {
            **properties,
            **optional,
            "model": named("Model"),
            "cluster": named("Cluster"),
        },
        "required": ["model", "cluster"],
        "oneOf": [{"required": ["training"]}, {"required": ["inference"]}],
        "additionalProperties": False,
        "$defs": {**serving["$defs"], **training["$defs"]},
    }
    return as_written(whole)


def _open_numbers(definitions: Schema) -> None:
    """Let the fields of a spec of training be open that `load` resolves to choices."""
    for name, field in (("Cluster", "count"), ("Training", "global_batch")):
        properties = definitions[name]["properties"]
        fixed, told = properties[field], ("default", "description")
        kept = {key: fixed[key] for key in told if key in fixed}
        properties[field] = {**OPEN_SCHEMA, **kept}
    definitions["Cluster"]["properties"]["choices"] = {
        "type": "array",
        "description": "Clusters to choose from, each with its machine and count.",
        "items": {"anyOf": [{"type": "string"}, ref("Cluster")]},
        "minItems": 1,
    }


def _file_of(model: type[Gpu | Model | Topology]) -> Schema:
    """Return the schema of a file of one model, without `preset`."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    written = as_written({"$defs": {**_gpu(), **definitions, model.__name__: schema}})
    definition = written["$defs"].pop(model.__name__)
    definition["properties"].pop("preset")
    definition["required"] = definition.pop("then")["required"]
    del definition["if"]
    return {**definition, "$defs": written["$defs"]}


def _gpu() -> Schema:
    schema = Gpu.model_json_schema()
    definitions: Schema = schema.pop("$defs", {})
    return {**definitions, "Gpu": schema}


def _sweep() -> Schema:
    spec, fields = (
        _with_serving(Spec.model_json_schema()),
        SweepFields.model_json_schema(),
    )
    base = {name: spec[name] for name in ("type", "properties", "additionalProperties")}
    number = {"type": "integer", "minimum": 1}
    series = {
        name: {"type": "array", "items": number, "minItems": 2, "maxItems": most}
        for name, most in (("log2", 2), ("range", 3))
    }
    span = {"type": "object", "properties": series, "maxProperties": 1}
    values = [{"type": "array", "minItems": 1}, {**span, "additionalProperties": False}]
    text = {"type": "string"}
    written: Schema = {
        "base": {"anyOf": [text, base]},
        "sweep": {"type": "object", "additionalProperties": {"anyOf": values}},
        "zip": {"type": "object", "additionalProperties": {"anyOf": values}},
        "where": {"anyOf": [text, {"type": "array", "items": text}]},
    }
    for name, schema in written.items():
        known = fields["properties"][name]
        fields["properties"][name] = {"description": known["description"], **schema}
    definitions = {**spec["$defs"], **fields.get("$defs", {})}
    return {**fields, "required": ["base"], "$defs": definitions}


def _runs() -> Schema:
    run = Run.model_json_schema()
    definitions = run.pop("$defs")
    described = {**definitions, "Run": run}
    return {
        "type": "array",
        "items": ref("Run"),
        "minItems": 1,
        "$defs": in_every_part(described, _lenient),
    }


def _lenient(part: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which text may be a number, as in files of runs."""
    return (
        {**part, "type": ["string", "number"]} if part.get("type") == "string" else part
    )


def _result() -> Schema:
    """Return the schema of results; solved specs have their plan's fields on top."""
    parts = FrameworkLimits | OpenAnswer | SolvedModel | Conflict | Repair
    adapter: TypeAdapter[Any] = TypeAdapter(RESULTS | parts)
    schema = adapter.json_schema(mode="serialization")
    known = schema["$defs"]
    priced = {
        "fastest": ref("SolvedPlan"),
        "others": {"type": "array", "items": ref("SolvedPlan")},
        "by_kind": {"type": "array", "items": ref("SolvedKind")},
    }
    alone = {
        "claim": {"type": "string", "description": "The proven claims in a sentence."},
        "open": ref("OpenAnswer"),
        "conflict": ref("Conflict"),
        "repair": ref("Repair"),
        "framework_limits": ref("FrameworkLimits"),
        "solved_model": ref("SolvedModel"),
    }
    known["SolvedPlan"] = plan_schema(known["PricedPlan"], TRAINING)
    known["SolvedKind"] = _solved_kind(known["KindResult"])
    proof = known["Certificate"]
    outcome, serving = known["Outcome"], known["ServingOutcome"]
    known["SolvedSpec"] = answer_schema(
        outcome, known["PricedPlan"], proof, TRAINING, **priced, **alone
    )
    known["SolvedServing"] = answer_schema(
        serving, known["PricedServing"], proof, SERVING
    )
    others = [ref(model.__name__) for model in get_args(RESULTS)[2:]]
    solved = [ref("SolvedSpec"), ref("SolvedServing")]
    return {"$defs": dict(sorted(known.items())), "anyOf": [*solved, *others]}


def _solved_kind(definition: Schema) -> Schema:
    """Return the fastest plan of a kind as solved specs have it."""
    properties = dict(definition["properties"])
    del properties["is_proven"]
    properties["best"] = {"anyOf": [ref("SolvedPlan"), {"type": "null"}]}
    required = [name for name in properties if name != "bound_s"]
    return {**definition, "properties": properties, "required": required}


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
    whole = {**schema, "$defs": definitions}
    written: Schema = in_every_part(whole, _one_or_several)
    return written


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


def _one_or_several(part: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which a list of words may be a single word instead."""
    items = part.get("items")
    if (
        part.get("type") != "array"
        or not isinstance(items, dict)
        or "enum" not in items
    ):
        return part
    words = {name: part.pop(name) for name in ("type", "items")}
    return {**part, "anyOf": [items, {**words, "minItems": 1}]}


KINDS: dict[str, tuple[str, Callable[[], Schema]]] = {
    "spec": ("A spec: one question to Meshwright", _spec),
    "topology": ("A topology or machine", lambda: _file_of(Topology)),
    "model": ("A model", lambda: _file_of(Model)),
    "gpu": ("A GPU", lambda: _file_of(Gpu)),
    "sweep": ("A sweep: many specs", _sweep),
    "runs": ("Measured runs", _runs),
    "profile": ("A profile: fitted efficiencies", Profile.model_json_schema),
    "prices": ("A list of prices of machines", PriceList.model_json_schema),
    "result": ("An answer, as --format json prints it", _result),
}
"""By kind of file, its title and the function that builds its schema."""
