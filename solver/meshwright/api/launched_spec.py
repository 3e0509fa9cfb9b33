"""The sections of a spec that a launch says: model, framework, training and pins."""

from __future__ import annotations

import json
from typing import Any

from meshwright.frameworks.base.registry import framework
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import Decided


def spec_fields(launch: Launch, decided: Decided) -> dict[str, Any]:
    """Return the sections of a spec that a launch says."""
    sections: dict[str, Any] = {"framework": launch.framework}
    for field, said in launch.values.items():
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
