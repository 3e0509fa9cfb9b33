"""Clusters to tell and to draw."""

from __future__ import annotations

from typing import Any

from meshwright.spec.cluster import Cluster

GPU: dict[str, Any] = {
    "name": "own", "memory_gib": 80, "memory_gb_s": 2000,
    "peak_tflops": {"bf16": 300}, "peer_links": 6, "peer_link_gb_s": 25,
    "pcie_gb_s": 12.8,
}  # fmt: skip


def levels(*sizes: int, uplink: str = "per_gpu", **more: Any) -> Cluster:
    rates = (300, 25, 25)
    found = [
        {"name": f"level{i}", "size": size, "gb_s": rates[i], "latency_us": i + 1,
         "uplink": uplink if i else "per_gpu"}
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    topology = {"name": "tree", "gpu": GPU, "levels": found, **more}
    return Cluster.model_validate({"topology": topology})


def graph(nodes: list[dict[str, Any]], links: dict[tuple[str, str], float]) -> Cluster:
    joined = [
        {"between": list(ends), "gb_s": gb_s, "latency_us": 1}
        for ends, gb_s in links.items()
    ]
    topology = {"name": "graph", "gpu": GPU, "nodes": nodes, "links": joined}
    return Cluster.model_validate({"topology": topology})


def bridged(hosts: int = 1) -> Cluster:
    """Per host: GPUs in bridged pairs, a CPU for each pair, and a NIC to a fabric."""
    nodes: list[dict[str, Any]] = [{"name": "fabric", "kind": "switch"}]
    links: dict[tuple[str, str], float] = {}
    for h in range(hosts):
        nodes += [{"name": f"g{h}.{i}", "host": h} for i in range(4)]
        nodes += [{"name": f"cpu{h}.{i}", "kind": "switch"} for i in range(2)]
        nodes += [{"name": f"nic{h}", "kind": "nic", "gb_s": 12.5}]
        links |= {(f"g{h}.{i}", f"cpu{h}.{i // 2}"): 25 for i in range(4)}
        links |= {(f"g{h}.0", f"g{h}.1"): 56, (f"g{h}.2", f"g{h}.3"): 56}
        links |= {(f"cpu{h}.0", f"cpu{h}.1"): 16, (f"nic{h}", f"cpu{h}.0"): 15}
        links |= {(f"nic{h}", "fabric"): 12.5}
    return graph(nodes, links)


def switched(hosts: int) -> Cluster:
    """Per host: eight GPUs below an NVSwitch, each pair of them with a PCIe switch."""
    nodes: list[dict[str, Any]] = [{"name": "fabric", "kind": "switch"}]
    links: dict[tuple[str, str], float] = {}
    for h in range(hosts):
        nodes += [{"name": f"g{h}.{i}", "host": h} for i in range(8)]
        nodes += [{"name": f"nvswitch{h}", "kind": "switch"}]
        nodes += [{"name": f"pcie{h}.{i}", "kind": "switch"} for i in range(4)]
        nodes += [{"name": f"nic{h}.{i}", "kind": "nic"} for i in range(4)]
        links |= {(f"g{h}.{i}", f"nvswitch{h}"): 450 for i in range(8)}
        links |= {(f"g{h}.{i}", f"pcie{h}.{i // 2}"): 50 for i in range(8)}
        links |= {(f"nic{h}.{i}", f"pcie{h}.{i}"): 50 for i in range(4)}
        links |= {(f"nic{h}.{i}", "fabric"): 50 for i in range(4)}
    return graph(nodes, links)


def hosts_of_pairs(*overrides: dict[str, Any], **levels_above: int) -> Cluster:
    """Four GPUs on two CPUs, a NIC at each, below a leaf and a spine."""
    nodes: list[dict[str, Any]] = [{"name": f"g{i}"} for i in range(4)]
    nodes += [{"name": f"cpu{i}", "kind": "switch"} for i in range(2)]
    nodes += [{"name": f"nic{i}", "kind": "nic", "gb_s": 25} for i in range(2)]
    ends = {(f"g{i}", f"cpu{i // 2}"): 25 for i in range(4)}
    ends |= {(f"nic{i}", f"cpu{i}"): 32 for i in range(2)} | {("cpu0", "cpu1"): 16}
    links = [
        {"between": list(pair), "gb_s": gb_s, "latency_us": 1}
        for pair, gb_s in ends.items()
    ]
    above = [
        {"name": name, "size": size, "gb_s": 20, "latency_us": 2, "uplink": "per_nic"}
        for name, size in levels_above.items()
    ]
    topology = {"gpu": GPU, "nodes": nodes, "links": links, "levels": above}
    return Cluster.model_validate({"topology": topology, "overrides": overrides})
