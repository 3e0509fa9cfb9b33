"""What a GPU has of uplinks, and switches whose names other nodes have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from meshwright.spec.cluster import Cluster
from meshwright.spec.topology import ScaleOut
from meshwright.topology.diagram import draw_cluster, summarise_hosts
from meshwright.topology.groups import group_loads, price_groups
from meshwright.topology.routed_fabric import build_fabric
from tests.helpers.every_mesh import every_mesh
from tests.helpers.irregular import GPU, machine


def cluster(**fields: Any) -> Cluster:
    return Cluster.model_validate(fields)


@pytest.mark.parametrize(
    ("uplink", "uplinks", "gb_s"),
    [
        # Of 24 GB/s an uplink, 6 GPUs and 4 NICs: each GPU its own; one for six;
        # four for six, 4 x 24 / 6.
        ("per_gpu", 6, 24.0),
        ("shared", 1, 4.0),
        ("per_nic", 4, 16.0),
    ],
)
def test_a_gpu_has_its_part_of_the_uplinks(
    uplink: str, uplinks: int, gb_s: float
) -> None:
    found = ScaleOut.model_validate(
        {"name": "leaf", "gb_s": 24, "latency_us": 1, "uplink": uplink}
    )
    assert found.uplinks(6, 4) == uplinks
    assert found.gb_s_per_gpu(6, 4) == pytest.approx(gb_s, rel=1e-15)


def adapters(switch: str = "switch", nics: int = 1) -> dict[str, Any]:
    """Return two GPUs and some NICs on one switch, 100 GB/s each."""
    names = [f"nic{i}" for i in range(nics)]
    ends = ["gpu0", "gpu1", *names]
    return machine(2, [switch], [(end, switch, 100.0, 1.0) for end in ends], names)


def level(name: str, size: int, gb_s: float, uplink: str) -> dict[str, Any]:
    return {
        "name": name, "size": size, "gb_s": gb_s, "latency_us": 1, "uplink": uplink,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spine_gb_s", "uplink", "per_nic_gb_s"),
    [
        # A NIC of 40 GB/s for 2 GPUs is 20 for each. Above 2 hosts, so 4 GPUs, a
        # shared uplink of 40 is 10 for each: 20 a NIC. One of 120 is 30: no less.
        (40, "shared", 20),
        (120, "shared", 40),
        # An uplink of 15 for each GPU: 30 a NIC.
        (15, "per_gpu", 30),
        # Of each NIC: as it is.
        (15, "per_nic", 15),
    ],
)
def test_levels_above_hosts_in_use_are_as_wide_as_the_narrowest(
    spine_gb_s: float, uplink: str, per_nic_gb_s: float
) -> None:
    leaf = level("leaf", 2, 40, "per_nic")
    above = [leaf, level("spine", 2, spine_gb_s, uplink)]
    found = cluster(topology=adapters() | {"levels": above}, overrides=[{"host": 3}])
    (flat,) = found.hosts.outer
    assert (flat.size, flat.uplink) == (3, "per_nic")
    assert flat.gb_s == pytest.approx(per_nic_gb_s, rel=1e-15)


def test_the_host_with_the_fewest_nics_sets_what_gpus_have() -> None:
    """Of 2 NICs for 2 GPUs host 1 has lost one: 24 / 2 for each GPU."""
    leaf = level("leaf", 2, 24, "per_nic")
    topology = adapters(nics=2) | {"levels": [leaf]}
    found = cluster(topology=topology, overrides=[{"host": 1, "node": "nic1"}])
    assert (found.hosts.gpus, found.hosts.nics) == (2, 1)
    outer = found.hosts.outer[0]
    assert outer.gb_s_per_gpu(found.hosts.gpus, found.hosts.nics) == 12.0


@pytest.mark.parametrize(
    "lost", [{"node": "nic0"}, {"host": 1, "node": "nic0"}, {"node": "leaf0"}]
)
def test_hosts_without_a_way_out_are_refused(
    lost: dict[str, Any],
) -> None:
    topology = adapters() | {"levels": [level("leaf", 2, 24, "per_nic")]}
    more = adapters() | {"levels": [level("leaf", 4, 24, "per_nic")]}
    for known, out in ((topology, []), (more, [{"host": 3}])):
        with pytest.raises(ValidationError, match="leave 'leaf0' without a way to"):
            cluster(topology=known, overrides=[*out, lost])
    alone = cluster(topology=topology, overrides=[{"host": 0}, lost])
    assert alone.gpus == 2


def test_a_node_may_be_called_as_the_switch_outside() -> None:
    """Its links are its own: what groups pay does not hang on what it is called."""
    above = {"levels": [level("leaf", 2, 24, "per_nic")]}
    plain = build_fabric(cluster(topology=adapters() | above))
    same = build_fabric(cluster(topology=adapters("leaf0") | above))
    meshes = every_mesh((2, 2))
    paths, others = price_groups(plain, meshes), price_groups(same, meshes)
    assert np.array_equal(paths.s_per_byte, others.s_per_byte)
    assert np.array_equal(paths.latency_s, others.latency_s)
    loads = [group_loads(one, meshes[0], 1) for one in (plain, same)]
    assert np.array_equal(loads[0], loads[1])
    assert "node0.nic0 -> node0.leaf0" in same.link_names
    assert "node0.nic0 -> leaf-switch0" in same.link_names


@pytest.mark.parametrize("uplink", ["per_gpu", "shared"])
@pytest.mark.parametrize("names", [("nic", "gpu"), ("gpu", "nic"), ("a", "a")])
def test_levels_may_be_called_as_gpus_nics_or_each_other(
    names: tuple[str, str], uplink: str
) -> None:
    """Two GPUs a switch, two switches a host, two hosts: 6 nodes and the NICs."""
    inner, middle = level(names[0], 2, 100, "per_gpu"), level(names[1], 2, 50, "shared")
    levels = [inner, middle, level(names[1], 2, 24, uplink)]
    host = {"gpus": 4, "memory_gib": 64, "pcie_gb_s": 8, "memory_gb_s": 90}
    topology = {"gpu": GPU, "levels": levels, "host": host}
    (kind,) = summarise_hosts(cluster(topology=topology))
    called = [node.name for node in kind.machine.nodes]
    assert len(set(called)) == len(called)
    nics = {"per_gpu": 4, "shared": 1}[uplink]
    assert len(called) == 4 + 2 + 1 + nics + 1
    ours = {f"gpu{i}" for i in range(4)} | {f"nic{i}" for i in range(nics)}
    assert ours < set(called)
    down = [{"node": "gpu0"}, {"host": 1, "node": "gpu3"}]
    left = cluster(topology=topology, overrides=down)
    assert left.gpus == 2 * 2
    assert draw_cluster(left).lines
