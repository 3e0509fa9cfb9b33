"""Specs of strangers: fields in which every name is that of a bundled file.

A spec may name files of its author, which is no way for text from elsewhere to reach
the files of this machine.
"""

from __future__ import annotations

import copy
from typing import Any

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.imports.registry import kinds
from meshwright.loading.imported_model import FIELD as HF_CONFIG
from meshwright.reading.messages import shown

Fields = dict[str, Any]

INSTEAD = "no file is read here; paste what is in it, or name what is bundled"


def with_bundled_names(fields: Fields) -> Fields:
    """Return the fields of a spec with every name as that of a bundled file.

    Raises:
        SpecError: a field names a file, or nothing that is bundled.
    """
    own = copy.deepcopy(fields)
    if "model" in own:
        own["model"] = _model(own["model"])
    cluster = own.get("cluster")
    if isinstance(cluster, str):
        cluster = own["cluster"] = {"topology": cluster}
    if isinstance(cluster, dict):
        _refuse_files(cluster)
        _rename_machine(cluster, "cluster")
        parts = cluster.get("parts")
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict):
                _rename_machine(part, f"cluster.parts.{index}")
    return own


def _model(model: Any) -> Any:
    """Return a model; one by its name as a preset, which no file can be meant by."""
    if isinstance(model, dict) and HF_CONFIG in model:
        raise SpecError(f"model.{HF_CONFIG}: {shown(model[HF_CONFIG])}: {INSTEAD}")
    return _preset(model, catalog.MODELS, "model")


def _refuse_files(cluster: Fields) -> None:
    for kind in kinds("machines", "fabrics"):
        if kind in cluster:
            raise SpecError(f"cluster.{kind}: {shown(cluster[kind])}: {INSTEAD}")


def _rename_machine(parent: Fields, at: str) -> None:
    """Put the topology of a mapping, which may call it machine, under bundled names."""
    if "machine" in parent and "topology" not in parent:
        parent["topology"] = parent.pop("machine")
    for name in ("machine", "topology"):
        if name in parent:
            parent[name] = _topology(parent[name], f"{at}.{name}")


def _topology(value: Any, at: str) -> Any:
    topology = _preset(value, "topologies", at)
    if isinstance(topology, dict) and "gpu" in topology:
        topology["gpu"] = _preset(topology["gpu"], catalog.GPUS, f"{at}.gpu")
    return topology


def _preset(value: Any, kind: str, at: str) -> Any:
    """Return a name as a mapping with a bundled preset, and a mapping with its own."""
    if isinstance(value, str):
        return {"preset": _bundled(kind, value, at)}
    if isinstance(value, dict) and "preset" in value:
        name = value["preset"]
        if not isinstance(name, str):
            raise SpecError(f"{at}.preset: {shown(name)}: expected a bundled name")
        value["preset"] = _bundled(kind, name, f"{at}.preset")
    return value


def _bundled(kind: str, name: str, at: str) -> str:
    try:
        return catalog.bundled(kind, name)
    except SpecError as error:
        raise SpecError(f"{at}: {error}; {INSTEAD}") from None
