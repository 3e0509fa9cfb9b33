"""`meshwright import` of what starts training: its plan as text, the rest as a spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshwright.frameworks.base.registry import framework
from meshwright.imports.launch import Launch
from meshwright.imports.launch_plan import Decided, decide
from meshwright.imports.read_launch import read_launch
from meshwright.imports.yaml_text import as_yaml
from meshwright.loading.launched_plan import as_pins, sizes_of

REQUIRED = ("n_layers", "d_model", "n_heads", "d_ff", "vocab")
"""Fields that the model of a spec must have."""


def launch_text(path: Path, kind: str | None) -> tuple[str, tuple[str, ...]]:
    """Return what a launch says as the beginning of a spec, and notes.

    Raises:
        SpecError: the file cannot be read as a launch.
    """
    launch = read_launch(path, kind)
    decided = decide(launch, sizes_of(launch))
    as_pins(launch, decided)
    notes = (*launch.notes(), *_missing(launch, decided))
    plan = f"meshwright explain SPEC --plan '{plan_text(decided.pins)}'"
    made_from = f"{path} ({launch.kind}: {launch.title})"
    return as_yaml(made_from, [*notes, plan], _fields(launch, decided)), notes


def plan_text(pins: dict[str, Any]) -> str:
    """Return fields of a plan as `--plan` reads them."""
    return ",".join(f"{name}={_word(value)}" for name, value in pins.items())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    return str(value)


def _missing(launch: Launch, decided: Decided) -> list[str]:
    names = ["cluster"]
    if gpus := launch.value("gpus"):
        names = [f"cluster ({gpus} GPUs)"]
    names += [
        f"model.{name}" for name in REQUIRED if launch.value(f"model.{name}") is None
    ]
    if decided.global_batch is None:
        names += ["training.global_batch"] * (
            "training.global_batch" not in launch.said
        )
    names += ["training.seq_len"] * ("training.seq_len" not in launch.said)
    left = ", ".join(decided.open)
    return [
        f"{launch.name}: does not say, and a spec needs: {', '.join(names)}",
        f"{launch.name}: the plan leaves open: {left}",
    ]


def _fields(launch: Launch, decided: Decided) -> dict[str, Any]:
    """Return the sections of a spec that a launch says."""
    sections: dict[str, Any] = {"framework": launch.framework}
    for field, said in launch.said.items():
        section, *path = field.split(".")
        if section in ("model", "training"):
            inner = sections.setdefault(section, {})
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = said.value
    training = sections.setdefault("training", {})
    if "fused" in training:
        kinds = framework(launch.framework).fused - training["fused"].keys()
        one = {kind for kind, is_on in training["fused"].items() if is_on}
        training["fused"] = sorted(kinds | one)
    if decided.global_batch is not None:
        training["global_batch"] = decided.global_batch
    if (precision := launch.value("precision")) is not None:
        first = precision[0] if isinstance(precision, list) else precision
        training["precision"] = first
    pins = {name: json.loads(json.dumps(own)) for name, own in decided.pins.items()}
    order = ("model", "framework", "training")
    ordered = {name: sections[name] for name in order if sections.get(name)}
    return {**ordered, "pins": pins}
