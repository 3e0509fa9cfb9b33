"""The `fields` directive: all fields of a section of a YAML file, with their meaning.

The text is that of the models that read the file; nothing is written by hand.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

MODELS = {
    "spec": "spec.spec:Spec",
    "serving spec": "spec.serving:ServingSpec",
    "model": "spec.model:Model",
    "model.moe": "spec.model_parts:Experts",
    "model.mla": "spec.model_parts:LatentAttention",
    "model.mla.indexer": "spec.model_parts:Indexer",
    "model.kinds": "spec.model_parts:LayerKind",
    "model.details": "spec.model_parts:Details",
    "model.details.rope_scaling": "spec.model_parts:RopeScaling",
    "model.state_space": "spec.model_parts:StateSpace",
    "cluster": "spec.cluster:Cluster",
    "cluster.parts": "spec.cluster:Part",
    "cluster.overrides": "spec.topology:Override",
    "topology": "spec.topology:Topology",
    "gpu": "spec.gpu:Gpu",
    "level": "spec.topology:Level",
    "node": "spec.topology:Node",
    "link": "spec.topology:Link",
    "host": "spec.topology:Host",
    "training": "spec.training:Training",
    "training.lora": "spec.training:Lora",
    "limits": "spec.goals:Limits",
    "pins": "spec.plan_fields:Pins",
    "pins.mesh": "spec.plan_fields:MeshPin",
    "rules": "spec.user_rules:UserRule",
    "run": "spec.spec:TrainingRun",
    "run.checkpoint": "spec.spec:Checkpoint",
    "run.straggler": "spec.spec:Straggler",
    "inference": "spec.serving:Inference",
    "inference.slo": "spec.serving:Slo",
    "sweep": "sweeps.sweep:SweepFields",
    "sample": "sweeps.sweep:Sample",
    "run file": "evidence.runs:Run",
    "run file.model": "evidence.runs:RunModel",
    "run file.model.moe": "evidence.runs:RunExperts",
    "run file.hardware": "evidence.runs:RunHardware",
    "run file.config": "evidence.runs:RunConfig",
    "run file.measured": "evidence.runs:Measured",
    "run file.check": "evidence.runs:RunCheck",
    "efficiency": "cost.job:Efficiency",
}
"""Section of a file to the model that reads it."""

MOST = 10_000_000
"""Bounds from here on only keep numbers from overflowing, and are not told."""

DOCS = Path(__file__).parents[1]
TERMS = re.compile(r"^\| ((?:`[\w.]+`(?:, )?)+) \| (.+) \|$", re.MULTILINE)
CODE = re.compile(r"`([\w.]+)`")


def model_of(section: str) -> Any:
    """Return the pydantic model of a section."""
    module, name = MODELS[section].split(":")
    return getattr(importlib.import_module(f"meshwright.{module}"), name)


def table(section: str) -> str:
    """Return the fields of a section as a markdown table."""
    return table_of(model_of(section).model_json_schema())


def table_of(schema: dict[str, Any]) -> str:
    """Return the fields of a model as a markdown table."""
    required, shared = set(schema.get("required", ())), schema.get("$defs", {})
    rows = ["| field | takes | default | meaning |", "| --- | --- | --- | --- |"]
    for name, own in schema["properties"].items():
        default = "required" if name in required else _default(own)
        meaning = _meaning(name, own, shared)
        rows.append(f"| `{name}` | {_takes(own, shared)} | {default} | {meaning} |")
    return "\n".join(rows)


def _meaning(name: str, own: dict[str, Any], shared: dict[str, Any]) -> str:
    """Return what a field means: as it says, as the glossary says, or as its type."""
    types = [part.get("items", part) for part in _parts(own)]
    named = [_target(part, shared) for part in types]
    texts = [
        own,
        {"description": glossary().get(name)},
        *(part or {} for part in named),
    ]
    text = next((t["description"] for t in texts if t.get("description")), "")
    return str(text).split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


@cache
def glossary() -> dict[str, str]:
    """Return the words that pages explain in tables: the first cell is in backticks."""
    found: dict[str, str] = {}
    for page in ("concepts", "searches"):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        for terms, meaning in TERMS.findall(text):
            for term in CODE.findall(terms):
                found.setdefault(term, meaning)
    return found


def _default(own: dict[str, Any]) -> str:
    value = own.get("default")
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else value
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, str | int | float | list) else "-"


def _parts(own: dict[str, Any]) -> list[dict[str, Any]]:
    parts = own.get("anyOf") or own.get("oneOf") or [own]
    return [part for part in parts if part.get("type") != "null"]


def _target(part: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any] | None:
    return shared.get(part["$ref"].split("/")[-1]) if "$ref" in part else None


def _takes(own: dict[str, Any], shared: dict[str, Any]) -> str:
    found = dict.fromkeys(_one(part, shared) for part in _parts(own))
    return " or ".join(found)


def _one(part: dict[str, Any], shared: dict[str, Any]) -> str:
    target = _target(part, shared)
    if target is not None:
        return _words_of(part["$ref"].split("/")[-1])
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "const" in part:
        return f"`{part['const']}`"
    if part.get("type") == "array":
        return f"list of {_one(part['items'], shared)}" if "items" in part else "list"
    return "".join(_number(part))


def _number(part: dict[str, Any]) -> Iterator[str]:
    words = {"integer": "whole number", "boolean": "`true`, `false`"}
    words |= {"string": "text", "object": "mapping", "number": "number"}
    yield words.get(part.get("type", ""), "value")
    least, most = part.get("minimum"), part.get("maximum")
    if least is not None and most is not None:
        is_open = most >= MOST
        yield f" from {least:,}" if is_open else f" from {least:,} to {most:,}"


def _words_of(name: str) -> str:
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in name)
    return words.strip()


class Fields(SphinxDirective):
    """Puts the table of a section in its place."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the generated text."""
        return self.parse_text_to_nodes(table(self.arguments[0]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("fields", Fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
