"""GPUs and checks that the tests of imports share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.imports.machines.facts import MachineFacts
from meshwright.imports.machines.graph import to_graph
from meshwright.imports.registry import Imported
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu

FIELDS: dict[str, Any] = {
    "memory_gib": 80,
    "memory_gb_s": 2_000,
    "peak_tflops": {"bf16": 300},
}


def make_gpu(**fields: Any) -> Gpu:
    """Return a GPU with these fields beside those that every one has."""
    return Gpu.model_validate(FIELDS | fields)


A100 = make_gpu(peer_links=12, peer_link_gb_s=25, pcie_gb_s=25)
H100 = make_gpu(peer_links=18, peer_link_gb_s=25, pcie_gb_s=50)
A6000 = make_gpu(peer_links=4, peer_link_gb_s=14, pcie_gb_s=25)
MI300X = make_gpu(peer_links=7, peer_link_gb_s=64, pcie_gb_s=50)
PCIE = make_gpu(peer_links=0, pcie_gb_s=25)


def validated(imported: Imported, gpu: Gpu = PCIE) -> Cluster:
    """Return the cluster that an import makes."""
    topology = {**imported.fields, "gpu": gpu.model_dump(), "name": "imported"}
    return Cluster.model_validate({"topology": topology})


def links_of(imported: Imported) -> Mapping[tuple[str, str], float]:
    """Return GB/s by the names of both ends."""
    links = imported.fields["links"]
    return {tuple(link["between"]): link["gb_s"] for link in links}


def names_of(imported: Imported, kind: str) -> list[str]:
    """Return the names of the nodes of a kind, in order."""
    return [n["name"] for n in imported.fields["nodes"] if n["kind"] == kind]


def as_topology(
    to_machine: Callable[[Any, Gpu], MachineFacts], facts: Any, gpu: Gpu
) -> Imported:
    """Return the nodes and links that an importer makes of facts."""
    return to_graph(to_machine(facts, gpu), gpu)
