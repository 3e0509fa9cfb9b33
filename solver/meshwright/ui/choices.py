"""The lists of the page: models, clusters, frameworks and specs that are bundled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from meshwright import catalog
from meshwright.exports import TARGETS
from meshwright.exports.target import target
from meshwright.loading.load import load_cluster
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.spec import framework_names

FIRST = "llama3-70b-16xh100"
"""The bundled spec with which the page opens."""


@cache
def choices() -> dict[str, Any]:
    """Return what the lists of the page offer."""
    return {
        "first": FIRST,
        "models": catalog.names(catalog.MODELS),
        "clusters": list(_clusters()),
        "gpus": catalog.names(catalog.GPUS),
        "frameworks": framework_names(),
        "exports": _exports(),
        "specs": dict(_specs()),
    }


def _exports() -> dict[str, list[str]]:
    """Return the targets that plans of a framework are written for, the usual first."""
    found: dict[str, list[str]] = {}
    for name in TARGETS:
        found.setdefault(target(name).framework, []).append(name)
    return found


def _clusters() -> Iterator[dict[str, Any]]:
    folders = ("topologies", "topologies/machines")
    for name in sorted(own for kind in folders for own in catalog.names(kind)):
        cluster = load_cluster(name)
        yield {
            "name": name,
            "gpus": cluster.gpus,
            "gpu": cluster.topology.gpu.name,
            "grows": cluster.topology.scale_out is not None,
        }


def _specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the bundled specs of training by name, as they are written."""
    for name in catalog.names("specs"):
        fields = read_yaml(catalog.locate("specs", name, Path())).data
        if "training" in fields:
            yield name, fields
