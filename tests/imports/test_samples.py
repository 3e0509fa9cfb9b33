"""Every real sample is read as its index says, and describes a machine that is one.

The samples are others' files and not shipped: MESHWRIGHT_SHARED names the folder that
has `samples/INDEX.yaml`; without it these tests are skipped.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.imports import hostfile, infiniband, slurm_nodes, slurm_topology
from meshwright.imports.machines import (
    hwloc,
    nccl_xml,
    nvidia_smi,
    rocm_smi,
)
from meshwright.imports.registry import Imported, detect, importer, kinds
from meshwright.imports.text import parse_xml
from tests.helpers.import_facts import (
    block_count,
    gpu_pair_cells,
    gpu_pair_links,
    links_per_gpu,
    names_seen_from_switches,
    nearest_nics,
    net_speeds_mbps,
    port_lines_by_speed,
)
from tests.helpers.import_gpus import (
    H100,
    MI300X,
    as_topology,
    links_of,
    names_of,
    validated,
)

Facts = dict[str, Any]

KINDS = {
    "nvidia_topo": "nvidia_smi",
    "rocm_showtopo": "rocm_smi",
    "nccl_topo_xml": "nccl_xml",
    "nccl_graph_xml": "nccl_xml",
    "slurm_topology": "slurm",
    "slurm_gres": "slurm_gres",
    "ibnetdiscover": "ibnetdiscover",
    "ibstat": "ibstat",
    "hwloc_xml": "hwloc",
    "scontrol_node": "scontrol",
    "hostfile": "hostfile",
    "launch_config": "launch",
}
"""Kinds of the index, and which importer reads them."""


def _nvidia(text: str, name: str) -> tuple[Facts, Imported | None]:
    facts = nvidia_smi.parse(text, name)
    near = nearest_nics(facts).items()
    seen = {
        "gpus": len(facts.gpus),
        "nics": [*facts.nics],
        "nic_names": [*facts.nic_names],
        "gpu_pair_links": gpu_pair_cells(facts),
        "symmetric": not facts.asymmetric,
        "cpu_affinity": facts.affinity("CPU Affinity"),
        "numa_affinity": facts.affinity("NUMA Affinity"),
        "nearest_nics": {gpu: {"via": via, "nics": nics} for gpu, (via, nics) in near},
        "rows_missing": [*facts.rows_missing],
    }
    return seen, as_topology(nvidia_smi.to_machine, facts, H100)


def _rocm(text: str, name: str) -> tuple[Facts, Imported | None]:
    facts = rocm_smi.parse(text, name)
    seen = {
        "gpus": len(facts.gpus),
        "link_types": facts.counts("type"),
        "weights": {int(k): v for k, v in facts.counts("weight").items()},
        "hops": {int(k): v for k, v in facts.counts("hops").items()},
        "numa": [facts.numa[gpu] for gpu in facts.gpus if gpu in facts.numa],
    }
    return seen, as_topology(rocm_smi.to_machine, facts, MI300X)


def _nccl(text: str, name: str) -> tuple[Facts, Imported | None]:
    facts = nccl_xml.parse(text, name)
    if facts.root == "graphs":
        keys = ("id", "pattern", "nchannels", "speedintra", "speedinter", "typeintra")
        graphs = [
            {key: getattr(graph, key) for key in keys}
            | {"channels": len(graph.channels)}
            for graph in facts.graphs
        ]
        return {"graphs": graphs}, None
    root = parse_xml(text, name)
    seen = {
        "root": facts.root,
        "version": facts.version,
        "cpus": len(facts.cpus),
        "gpu_elements": len(root.all("gpu")),
        "net_elements": len(root.all("net")),
        "pci_by_class": dict(Counter(pci.get("class") for pci in root.all("pci"))),
        "gpus": len(facts.gpus),
        "nvlinks_per_gpu": links_per_gpu(facts, "nvlink"),
        "xgmi_per_gpu": links_per_gpu(facts, "xgmi"),
        "net_speeds_mbps": net_speeds_mbps(facts),
    }
    return seen, as_topology(nccl_xml.to_machine, facts, H100) if facts.gpus else None


def _hwloc(text: str, name: str) -> tuple[Facts, Imported | None]:
    facts = hwloc.parse(text, name)
    kinds = [part.get("type") for part in parse_xml(text, name).all("object")]
    matrix = facts.matrices.get("NVLinkBandwidth")
    seen = {
        "nvlink_objects": len(matrix.objects) if matrix else 0,
        "values": len(matrix.values) if matrix else 0,
        "distinct": sorted(set(matrix.values)) if matrix else [],
        "cuda_osdevs": facts.count("cuda"),
        "nvml_osdevs": facts.count("nvml"),
        "numa": kinds.count("NUMANode"),
        "packages": kinds.count("Package") + kinds.count("Socket"),
        "gpus": len(facts.gpus),
    }
    return seen, as_topology(hwloc.to_machine, facts, H100) if facts.gpus else None


def _gres(text: str, name: str) -> tuple[Facts, Imported | None]:
    facts = slurm_nodes.parse_gres(text, name)
    seen = {
        "gpus": len(facts.gpus),
        "gpu_pair_links": gpu_pair_links(facts),
        "cores": [gpu.cores for gpu in facts.gpus],
        "mem_bytes": facts.mem_bytes,
    }
    return seen, as_topology(slurm_nodes.to_machine, facts, H100)


def _slurm(text: str, name: str) -> tuple[Facts, Imported | None]:
    facts = slurm_topology.parse(text, name)
    seen = {
        "switches": len(facts.groups),
        "leaf_switches": sum(bool(group.nodes) for group in facts.groups.values()),
        "blocks": len(facts.groups),
        "nodes": len({n for group in facts.groups.values() for n in group.nodes}),
        "block_sizes": [*facts.block_sizes],
    }
    return seen, slurm_topology.to_levels(facts)


def _fabric(text: str, name: str) -> tuple[Facts, Imported | None]:
    facts = infiniband.parse_ibnetdiscover(text, name)
    seen = {
        "switches": block_count(facts, "Switch"),
        "ca_blocks": block_count(facts, "Ca"),
        "hosts_seen_from_switches": len(names_seen_from_switches(facts)),
        "port_lines_by_speed": port_lines_by_speed(facts),
    }
    return seen, infiniband.to_levels(facts)


def _ports(text: str, name: str) -> tuple[Facts, Imported | None]:
    return {"hosts": len(infiniband.parse_ibstat(text, name).guids)}, None


def _hosts(text: str, name: str) -> tuple[Facts, Imported | None]:
    return {"hosts": len(hostfile.parse(text, name).slots)}, None


def _nodes(text: str, name: str) -> tuple[Facts, Imported | None]:
    facts = slurm_nodes.parse_scontrol(text, name)
    first = facts.nodes[0]
    seen = {
        "nodes": len(facts.nodes),
        "gpus": sum(facts.gpus_by_type.values()),
        "gpus_by_type": facts.gpus_by_type,
        "gpu_type": next(iter(first.gpus), None),
        "instance": first.instance,
        "state": first.state,
    }
    return seen, None


def _launch(text: str, name: str) -> tuple[Facts, Imported | None]:
    """Return what a configuration says; DeepSpeed's own words of it are its tests'."""
    kind = detect(text)
    assert kind is not None
    launch = importer(kind).parse(text, name)
    seen = {
        "accelerate": "valid",
        "world": launch.value("gpus"),
        "dp_replicate": launch.value("dp_replicate"),
        "dp_shard": launch.value("dp_shard"),
        "tp": launch.value("tp"),
        "cp": launch.value("cp"),
        "zero_stage": launch.value("zero"),
        "distributed_type": "DEEPSPEED" if launch.framework == "deepspeed" else "",
        "deepspeed": "0.19.8 rejects: no train_batch_size / "
        "train_micro_batch_size_per_gpu",
    }
    assert kind == "accelerate" or "micro_batch" not in launch.values
    return seen, None


READERS = {
    "launch": _launch,
    "nvidia_smi": _nvidia,
    "rocm_smi": _rocm,
    "nccl_xml": _nccl,
    "hwloc": _hwloc,
    "slurm_gres": _gres,
    "slurm": _slurm,
    "ibnetdiscover": _fabric,
    "ibstat": _ports,
    "hostfile": _hosts,
    "scontrol": _nodes,
}


def folder() -> Path | None:
    """Return the folder of the samples, if there is one."""
    shared = os.environ.get("MESHWRIGHT_SHARED")
    path = Path(shared, "samples") if shared else None
    return path if path and (path / "INDEX.yaml").is_file() else None


def _samples() -> list[Any]:
    path = folder()
    if path is None:
        reason = "set MESHWRIGHT_SHARED to a folder that has samples/INDEX.yaml"
        return [pytest.param({}, id="none", marks=pytest.mark.skip(reason=reason))]
    index = yaml.safe_load((path / "INDEX.yaml").read_text(encoding="utf-8"))
    mine = (sample for sample in index["samples"] if sample["kind"] in KINDS)
    return [pytest.param(sample, id=sample["file"]) for sample in mine]


@pytest.mark.parametrize("sample", _samples())
def test_sample_is_read_as_the_index_says(sample: dict[str, Any]) -> None:
    path, kind = folder(), KINDS[sample["kind"]]
    assert path is not None
    text = (path / sample["file"]).read_text(encoding="utf-8")
    seen, imported = READERS[kind](text, sample["file"])
    expected = sample["expect"]
    assert {key: seen.get(key) for key in expected} == expected
    plain = kind == "hostfile" and "slots" not in text
    looks = detect(text)
    is_launch = kind == "launch" and looks in kinds("launches")
    assert is_launch or looks == (None if plain else kind)
    if imported is not None:
        assert imported.notes
        cluster = validated(imported)
        assert "nodes" not in imported.fields or cluster.gpus == seen["gpus"]
        _check_sums(kind, seen, imported)


def _check_sums(kind: str, seen: Facts, imported: Imported) -> None:
    """Nothing is described that the file does not list: hosts, NICs, links."""
    if "levels" in imported.fields:
        hosts = math.prod(level["size"] for level in imported.fields["levels"])
        listed = seen.get("nodes") or seen["hosts_seen_from_switches"]
        assert hosts <= listed
        return
    nics = len(names_of(imported, "nic"))
    ports = {"nvidia_smi": len(seen.get("nics", ())), "nccl_xml": _network_ports(seen)}
    assert nics <= ports.get(kind, nics)
    counts = seen.get("nvlinks_per_gpu") or []
    if kind == "nccl_xml" and any(counts):
        drawn = [
            gb_s for ends, gb_s in links_of(imported).items() if "nvswitch" in ends
        ]
        assert sum(drawn) <= sum(counts) * (H100.peer_link_gb_s or 0)


def _network_ports(seen: Facts) -> int:
    """Return the most ports that a file of NCCL can have."""
    classes = seen.get("pci_by_class", {})
    cards = sum(n for kind, n in classes.items() if kind.startswith("0x02"))
    return int(cards + seen.get("net_elements", 0))
