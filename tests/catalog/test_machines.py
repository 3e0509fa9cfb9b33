"""The bundled machines add up to what is sold."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.topology import Topology

KIND = "topologies/machines"
GPUS = "topologies/gpus"

SOLD = {
    # GPU, how many, adapters that they send on, Gbit/s of all adapters: the vendors'
    # datasheets, and karpenter's table of EC2 instances.
    "dgx-1v": ("v100-sxm-32gb", 8, 4, 400),
    "dgx-2": ("v100-sxm-32gb", 16, 8, 800),
    "dgx-a100": ("a100-sxm-80gb", 8, 8, 1600),
    "dgx-a100-40gb": ("a100-sxm-40gb", 8, 8, 1600),
    "dgx-h100": ("h100-sxm-80gb", 8, 8, 3200),
    "dgx-h200": ("h200-sxm-141gb", 8, 8, 3200),
    "dgx-b200": ("b200-sxm-180gb", 8, 8, 3200),
    "dgx-b300": ("b300-sxm-288gb", 8, 8, 6400),
    "dgx-spark": ("gb10-128gb", 1, 1, 200),
    "gb200-nvl72": ("gb200-186gb", 72, 72, 28800),
    "gb300-nvl72": ("gb300-288gb", 72, 72, 57600),
    "p3.16xlarge": ("v100-sxm-16gb", 8, 1, 25),
    "p3dn.24xlarge": ("v100-sxm-32gb", 8, 1, 100),
    "p4d.24xlarge": ("a100-sxm-40gb", 8, 4, 400),
    "p4de.24xlarge": ("a100-sxm-80gb", 8, 4, 400),
    "p5.48xlarge": ("h100-sxm-80gb", 8, 32, 3200),
    "p5e.48xlarge": ("h200-sxm-141gb", 8, 32, 3200),
    "p5en.48xlarge": ("h200-sxm-141gb", 8, 16, 3200),
    "p6-b200.48xlarge": ("b200-sxm-180gb", 8, 8, 3200),
    "g5.12xlarge": ("a10g-24gb", 4, 1, 40),
    "g5.48xlarge": ("a10g-24gb", 8, 1, 100),
    "g6.48xlarge": ("l4-24gb", 8, 1, 100),
    "g6e.48xlarge": ("l40s-48gb", 8, 4, 400),
    "a2-highgpu-8g": ("a100-sxm-40gb", 8, 1, 100),
    "a2-ultragpu-8g": ("a100-sxm-80gb", 8, 1, 100),
    # Of 1000, 1800, 3600 and 3600 in all, 200, 200, 400 and 400 are the host's.
    "a3-highgpu-8g": ("h100-sxm-80gb", 8, 4, 800),
    "a3-megagpu-8g": ("h100-sxm-80gb", 8, 8, 1600),
    "a3-ultragpu-8g": ("h200-sxm-141gb", 8, 8, 3200),
    "a4-highgpu-8g": ("b200-sxm-180gb", 8, 8, 3200),
    "nd-a100-v4": ("a100-sxm-40gb", 8, 8, 1600),
    "ndm-a100-v4": ("a100-sxm-80gb", 8, 8, 1600),
    "nd-h100-v5": ("h100-sxm-80gb", 8, 8, 3200),
    "nd-h200-v5": ("h200-sxm-141gb", 8, 8, 3200),
    "ndv2": ("v100-sxm-32gb", 8, 1, 100),
    "mi300x-8": ("mi300x-192gb", 8, 8, 3200),
    "mi325x-8": ("mi325x-256gb", 8, 8, 3200),
    "mi355x-8": ("mi355x-288gb", 8, 8, 3200),
    "a6000-4-nvlink-pairs": ("a6000-48gb", 4, 0, 0),
}

CUBE_MESHES = ["dgx-1v", "ndv2", "p3.16xlarge", "p3dn.24xlarge"]


def data(kind: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(catalog.locate(kind, name, Path())).data
    return content


def machine(name: str) -> Topology:
    known = data(KIND, name)
    return Topology.model_validate(known | {"gpu": data(GPUS, known["gpu"])})


def gb_s(value: float | str) -> float:
    return float(value.split()[0]) / 8 if isinstance(value, str) else value


def test_every_machine_has_a_check() -> None:
    assert set(catalog.names(KIND)) == SOLD.keys()
    assert not set(catalog.names(KIND)) & set(catalog.names("topologies"))


@pytest.mark.parametrize("name", SOLD)
def test_machine_has_the_gpus_that_are_sold(name: str) -> None:
    topology = machine(name)
    gpus = sum(node.kind == "gpu" for node in topology.nodes)
    for level in topology.levels:
        gpus = max(gpus, 1) * level.size
    assert (topology.name, topology.gpu.name, gpus) == (name, *SOLD[name][:2])


@pytest.mark.parametrize("name", SOLD)
def test_adapters_add_up_to_the_network_that_is_sold(name: str) -> None:
    """GPUs share what is too few adapters to have one each."""
    _, gpus, adapters, gbit_s = SOLD[name]
    known, nics = data(KIND, name), [n for n in machine(name).nodes if n.kind == "nic"]
    out = known.get("scale_out")
    if out is None:
        assert adapters == len(nics) == 0
    elif out["uplink"] == "per_nic":
        assert len(nics) == adapters
        assert {nic.gb_s for nic in nics} == {gb_s(out["gb_s"])}
        assert adapters * gb_s(out["gb_s"]) == gbit_s / 8
    else:
        assert out["uplink"] == ("shared" if adapters < gpus else "per_gpu")
        uplinks = gpus if out["uplink"] == "per_gpu" else 1
        assert (len(nics), uplinks * gb_s(out["gb_s"])) == (0, gbit_s / 8)


@pytest.mark.parametrize("name", SOLD)
def test_links_between_gpus_are_those_of_the_gpu(name: str) -> None:
    """On a switch each GPU has all of its links; in a graph, no more than those."""
    topology = machine(name)
    gpu, inside = topology.gpu, Counter[str]()
    ports = (gpu.peer_links or 0) * (gpu.peer_link_gb_s or 0)
    for link in topology.links:
        if all(end.startswith("gpu") for end in link.between):
            inside.update(dict.fromkeys(link.between, link.gb_s))
    if topology.levels:
        has_ports = topology.levels[0].name in ("nvlink", "xgmi")
        assert has_ports == (ports > 0)
        assert not has_ports or topology.levels[0].gb_s == ports
    else:
        assert set(inside.values()) == {ports}
        assert len(inside) == SOLD[name][1]


@pytest.mark.parametrize("name", SOLD)
def test_hosts_feed_no_more_than_the_port_of_the_gpu(name: str) -> None:
    host, gpu = machine(name).host, machine(name).gpu
    if host is not None:
        assert gpu.pcie_gb_s is not None
        assert host.pcie_gb_s <= gpu.pcie_gb_s
        assert SOLD[name][1] % (host.gpus or SOLD[name][1]) == 0


@pytest.mark.parametrize("name", CUBE_MESHES)
def test_cube_mesh_is_two_rings_with_six_links_on_each_gpu(name: str) -> None:
    """8 GPUs x 6 links / 2 ends = 24 links on 16 pairs: 8 double and 8 single.

    The double links alone make a ring of all GPUs, and so do the single ones; six
    links join one half of the machine to the other.
    """
    counts = {
        frozenset(int(end.removeprefix("gpu")) for end in link.between): link.gb_s / 25
        for link in machine(name).links
        if all(end.startswith("gpu") for end in link.between)
    }
    assert sum(counts.values()) == 24
    for links in (1, 2):
        ring, seen = [pair for pair in counts if counts[pair] == links], [0]
        while following := [
            (pair - {seen[-1]})
            for pair in ring
            if seen[-1] in pair and not pair <= {*seen}
        ]:
            seen += following[0]
        assert (len(ring), sorted(seen)) == (8, list(range(8)))
        assert {seen[0], seen[-1]} in ring
    assert sum(n for pair, n in counts.items() if len({i // 4 for i in pair}) == 2) == 6


def test_pcie_switches_of_a_dgx_1_serve_two_gpus_and_an_adapter() -> None:
    below: dict[str, Counter[str]] = {}
    for link in machine("dgx-1v").links:
        for end, other in (link.between, link.between[::-1]):
            below.setdefault(end, Counter())[other.rstrip("0123456789")] += 1
    switches = [below[f"pcie{i}"] for i in range(4)]
    assert switches == [Counter(gpu=2, nic=1, cpu=1)] * 4


@pytest.mark.parametrize("name", SOLD)
def test_every_number_of_a_machine_names_its_source(name: str) -> None:
    lines = catalog.locate(KIND, name, Path()).read_text().splitlines()
    fields = ("gb_s:", "latency_us:", "memory_gib:", "pcie_gb_s:", "memory_gb_s:")
    for above, line in itertools.pairwise(lines):
        if line.strip().startswith(fields):
            assert "# " in line or above.strip().startswith("# "), line


@pytest.mark.parametrize(
    "cluster",
    ["2xGB10", "2x dgx-spark", {"gpu": "gb10", "count": 2}, {"topology": "dgx-spark"}],
)
def test_two_gb10_are_two_hosts_that_a_cable_joins(cluster: Any) -> None:
    if isinstance(cluster, dict):
        cluster = {**cluster, "count": 2}
    training = {"seq_len": 1024, "global_batch": 8}
    fields = {"model": "gpt2-xl", "cluster": cluster, "training": training}
    read = mw.load(fields, mw.Spec).cluster
    assert (read.gpus, read.gpus_per_host) == (2, 1)
    assert read.topology.scale_out is not None
    assert read.topology.scale_out.gb_s == 25
    assert read.topology.host is None


def test_a_machine_is_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "model: gpt2-xl\ncluster: {topology: P4de, count: 2}\n"
        "training: {seq_len: 1024, global_batch: 8}\n"
    )
    cluster = mw.load(str(tmp_path / "spec.yaml"), mw.Spec).cluster
    assert (cluster.gpus, cluster.topology.name) == (16, "p4de.24xlarge")
