"""Turns the facts of a machine into the nodes and links of a topology."""

from __future__ import annotations

from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.graph_builder import GraphBuilder
from meshwright.imports.imported import Imported, unique
from meshwright.imports.machine_facts import MachineFacts, components
from meshwright.imports.near_nics import with_near_nics
from meshwright.imports.pcie import add_pcie_tree
from meshwright.imports.pcie_ports import port_bandwidth_gb_s
from meshwright.imports.peer_links import add_peer_links
from meshwright.spec.gpu import Gpu
from meshwright.spec.topology import MAX_NODES
from meshwright.spec.units import LARGEST, SMALLEST


def to_graph(machine: MachineFacts, gpu: Gpu, gpu_name: str) -> Imported:
    """Return the machine as nodes and links, GPUs first, and what was assumed.

    PCIe is left out where other links join all GPUs and there is no NIC.

    Raises:
        SpecError: the file names no GPU, or a bandwidth is unknown.
    """
    if not machine.gpus:
        raise SpecError("the file names no GPU; expected at least one")
    machine = with_near_nics(machine)
    graph = GraphBuilder(taken={*machine.gpus, *(nic.name for nic in machine.nics)})
    graph.notes += machine.notes
    add_peer_links(machine, gpu, gpu_name, graph)
    if machine.nics or not _joins_all(machine, graph):
        port_gb_s = port_bandwidth_gb_s(machine, gpu, gpu_name, graph.notes)
        add_pcie_tree(machine, port_gb_s, graph)
    elif len(machine.gpus) > 1:
        graph.notes.append(
            "PCIe is left out: other links join all GPUs, and there is no NIC."
        )
    return Imported(_fields(machine, graph), unique(graph.notes))


def _joins_all(machine: MachineFacts, graph: GraphBuilder) -> bool:
    names = [*machine.gpus, *graph.switches]
    return len(components(names, map(frozenset, graph.links))) == 1


def _fields(machine: MachineFacts, graph: GraphBuilder) -> dict[str, Any]:
    """Return the fields `nodes` and `links`; refuse what no topology takes.

    Raises:
        SpecError: there are too many devices, or a bandwidth is out of range.
    """
    nodes: list[dict[str, Any]] = [
        {"name": name, "kind": "gpu", "host": 0} for name in machine.gpus
    ]
    for nic in machine.nics:
        port = {} if nic.gb_s is None else {"gb_s": nic.gb_s}
        nodes.append({"name": nic.name, "kind": "nic", "host": 0, **port})
    nodes += [{"name": name, "kind": "switch"} for name in graph.switches]
    if len(nodes) > MAX_NODES:
        raise SpecError(f"{len(nodes):,} devices; accepted: up to {MAX_NODES:,}")
    rates = {nic.name: nic.gb_s for nic in machine.nics if nic.gb_s is not None}
    rates |= {" - ".join(ends): gb_s for ends, (gb_s, _) in graph.links.items()}
    for name, gb_s in rates.items():
        if not SMALLEST <= gb_s <= LARGEST:
            accepted = f"accepted: {SMALLEST:g} to {LARGEST:,} GB/s"
            raise SpecError(f"{name}: {gb_s:,g} GB/s; {accepted}")
    links = [
        {"between": [*ends], "gb_s": round(gb_s, 4), "latency_us": latency_us}
        for ends, (gb_s, latency_us) in graph.links.items()
    ]
    return {"nodes": nodes, "links": links}
