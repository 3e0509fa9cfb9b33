"""What links of hosts carry, counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.spec.cluster import Cluster
from meshwright.spec.plan_fields import AXES
from meshwright.topology.fabric import Fabric, LevelFabric, Meshes
from meshwright.topology.groups import DP_SHARD, TP, group_loads, price_groups
from meshwright.topology.routed_fabric import RoutedFabric, build_fabric
from tests.helpers.every_mesh import every_mesh
from tests.helpers.irregular import GPU, in_pairs, loaded, machine, on_sockets

FP16 = {"seq_len": 2048, "global_batch": 32, "precision": "fp16"}


def mesh(**axes: tuple[int, ...]) -> Meshes:
    """Return one mesh, (1, axes, levels); axes left out have one member."""
    levels = len(next(iter(axes.values())))
    return np.array([[axes.get(axis, (1,) * levels) for axis in AXES]])


def fabric_of(topology: dict[str, Any], count: int = 1) -> Fabric:
    return build_fabric(Cluster.model_validate({"topology": topology, "count": count}))


def carried(fabric: Fabric, meshes: Meshes, group: int) -> dict[str, float]:
    """Return the bytes on each loaded link per byte that members pass on."""
    loads = group_loads(fabric, meshes[0], 1)[group] * np.array(fabric.link_gb_s) * 1e9
    pairs = zip(fabric.link_names, loads.tolist(), strict=True)
    return {name: load for name, load in pairs if load}


def node(gpus: int, nics: int, gb_s: float) -> dict[str, Any]:
    """Return GPUs and NICs on one switch that is never the bottleneck."""
    wires = [(f"gpu{i}", "switch", 400.0, 1.0) for i in range(gpus)]
    wires += [(f"nic{i}", "switch", 400.0, 1.0) for i in range(nics)]
    found = machine(gpus, ["switch"], wires, [f"nic{i}" for i in range(nics)])
    above = {"gb_s": gb_s, "latency_us": 2.0, "uplink": "per_nic"}
    return found | {"scale_out": above | {"name": "leaf"}}


@pytest.mark.parametrize(("uplink", "gb_s"), [("per_gpu", 6.25), ("shared", 25.0)])
def test_spine_is_oversubscribed_above_nics(uplink: str, gb_s: float) -> None:
    """4 hosts of 2 GPUs, 2 NICs of 25 GB/s each; 2 hosts a leaf, 25 GB/s up from it.

    tp 2 leaves 2 rings of 4 hosts. Each NIC carries one: 1 / 25e9. Each ring leaves a
    leaf once: 2 bytes on 25 GB/s, 2 / 25e9 (4 x 6.25 where each GPU has its own).
    """
    found = node(2, 2, 25.0)
    leaf = found.pop("scale_out") | {"size": 2}
    spine = {"name": "spine", "gb_s": gb_s, "latency_us": 1.0, "uplink": uplink}
    fabric = fabric_of(found | {"levels": [leaf], "scale_out": spine}, 2)
    meshes = mesh(tp=(2, 1, 1), dp_shard=(1, 2, 2))
    price = price_groups(fabric, meshes).s_per_byte[0, DP_SHARD]
    assert price == pytest.approx(2 / 25e9, rel=1e-9)
    below = mesh(tp=(2, 1, 1), dp_shard=(1, 2, 1), pp=(1, 1, 2))
    price = price_groups(fabric, below).s_per_byte[0, DP_SHARD]
    assert price == pytest.approx(1 / 25e9, rel=1e-9)


def test_four_gpus_share_one_adapter() -> None:
    """2 hosts of 4 GPUs, one port of 12.5 GB/s.

    tp 4: four rings of two hosts through it, 4 / 12.5e9. One ring over all eight
    leaves each host once: 1 / 12.5e9.
    """
    fabric = fabric_of(node(4, 1, 12.5), 2)
    many = price_groups(fabric, mesh(tp=(4, 1), dp_shard=(1, 2)))
    assert many.s_per_byte[0, DP_SHARD] == pytest.approx(4 / 12.5e9, rel=1e-9)
    one = price_groups(fabric, mesh(dp_shard=(4, 2)))
    assert one.s_per_byte[0, DP_SHARD] == pytest.approx(1 / 12.5e9, rel=1e-9)


def test_each_gpu_has_a_rail() -> None:
    """2 hosts of 4 GPUs, a NIC of 25 GB/s at each GPU.

    tp 4: each rail carries one ring, 1 / 25e9. One ring over all eight is turned
    through its four members: a quarter on each rail, 0.25 / 25e9, and three quarters
    of a byte on each hop inside, 0.75 / 100e9: less.
    """
    wires = [(f"gpu{i}", "switch", 100.0, 1.0) for i in range(4)]
    wires += [(f"gpu{i}", f"nic{i}", 50.0, 0.5) for i in range(4)]
    found = machine(4, ["switch"], wires, [f"nic{i}" for i in range(4)])
    leaf = {"name": "leaf", "gb_s": 25, "latency_us": 2.0, "uplink": "per_nic"}
    fabric = fabric_of(found | {"scale_out": leaf}, 2)
    many = price_groups(fabric, mesh(tp=(4, 1), dp_shard=(1, 2)))
    assert many.s_per_byte[0, DP_SHARD] == pytest.approx(1 / 25e9, rel=1e-9)
    one = price_groups(fabric, mesh(dp_shard=(4, 2)))
    assert one.s_per_byte[0, DP_SHARD] == pytest.approx(0.25 / 25e9, rel=1e-9)
    inside = carried(fabric, mesh(dp_shard=(4, 2)), DP_SHARD)
    assert inside["node0.gpu0 -> node0.switch"] == pytest.approx(0.75)
    assert inside["node0.gpu0 -> node0.nic0"] == pytest.approx(0.25)


def test_pairs_of_gpus_share_a_switch_and_an_adapter() -> None:
    """Cube meshes, tp 8 in each: of 8 rings over hosts two pass each NIC, 12.5 GB/s.

    Each GPU reaches the NIC on its own PCIe switch, so nothing goes up to the CPUs.
    """
    cluster = {"machine": "dgx-1v", "count": 2}
    fabric = build_fabric(loaded(cluster, training=FP16).cluster)
    found = mesh(tp=(8, 1), dp_shard=(1, 2))
    links = carried(fabric, found, DP_SHARD)
    for pair in range(4):
        assert links[f"node0.pcie{pair} -> node0.nic{pair}"] == pytest.approx(2)
        assert links[f"node0.nic{pair} -> leaf0"] == pytest.approx(2)
        assert links[f"node0.gpu{2 * pair} -> node0.pcie{pair}"] == pytest.approx(1)
    assert not [name for name in links if "cpu" in name]
    price = price_groups(fabric, found).s_per_byte[0, DP_SHARD]
    assert price == pytest.approx(2 / 12.5e9, rel=1e-9)


def test_cube_mesh_as_listed_goes_over_the_sockets() -> None:
    """The ring 0-1-2-3-4-5-6-7 in one cube mesh, by hand from dgx-1v.yaml.

    0-1, 4-5 are single links, 1-2, 2-3, 5-6, 6-7 double ones; 3-4 and 7-0 have none
    and cross the CPUs, one byte each way at 6 GB/s.
    """
    fabric = build_fabric(loaded({"machine": "dgx-1v"}, training=FP16).cluster)
    links = carried(fabric, mesh(tp=(8,)), TP)
    assert links["cpu0 -> cpu1"] == pytest.approx(1)
    assert links["cpu1 -> cpu0"] == pytest.approx(1)
    assert links["gpu1 -> gpu2"] == pytest.approx(1)
    assert "gpu3 -> gpu4" not in links
    price = price_groups(fabric, mesh(tp=(8,))).s_per_byte[0, TP]
    assert price == pytest.approx(1 / 6e9, rel=1e-9)


def test_sockets_are_crossed_as_often_as_the_ring_does() -> None:
    """0, 1 | 2, 3: the ring crosses once each way, 1 / 10e9; interleaved twice."""
    tidy = fabric_of(on_sockets({0: 0, 1: 0, 2: 1, 3: 1}))
    mixed = fabric_of(on_sockets({0: 0, 1: 1, 2: 0, 3: 1}))
    for fabric, times in ((tidy, 1), (mixed, 2)):
        links = carried(fabric, mesh(tp=(4,)), TP)
        assert links["cpu0 -> cpu1"] == pytest.approx(times)
        price = price_groups(fabric, mesh(tp=(4,))).s_per_byte[0, TP]
        assert price == pytest.approx(times / 10e9, rel=1e-9)


def test_a_bridge_takes_what_it_joins_off_pcie() -> None:
    """tp 2 on (0, 1), bridged, and (2, 3), not: 1 / 25e9 on the PCIe of the latter."""
    fabric = fabric_of(in_pairs([(0, 1)]))
    links = carried(fabric, mesh(tp=(2,), dp_shard=(2,)), TP)
    expected = {"gpu0 -> gpu1", "gpu1 -> gpu0"}
    expected |= {f"gpu{i} -> cpu" for i in (2, 3)} | {f"cpu -> gpu{i}" for i in (2, 3)}
    assert set(links) == expected
    price = price_groups(fabric, mesh(tp=(2,), dp_shard=(2,))).s_per_byte[0, TP]
    assert price == pytest.approx(1 / 25e9, rel=1e-9)


def test_slots_of_an_order_carry_what_their_ranks_send() -> None:
    """The same with ranks 0, 1 on GPUs 2, 3: the bridge stays with GPUs 0 and 1."""
    fabric = fabric_of(in_pairs([(0, 1)]))
    assert isinstance(fabric, RoutedFabric)
    found = mesh(pp=(2,), dp_shard=(2,))
    # dp_shard comes before pp: ranks (0, 1) and (2, 3) are rings of two.
    as_listed = carried(fabric, found, DP_SHARD)
    turned = carried(fabric.placed(((2, 3, 0, 1),)), found, DP_SHARD)
    apart = carried(fabric.placed(((0, 2, 1, 3),)), found, DP_SHARD)
    assert as_listed == turned
    assert not [name for name in apart if name == "gpu0 -> gpu1"]


levels_of = st.tuples(
    st.integers(2, 4), st.integers(2, 3), st.floats(10, 400), st.floats(0, 5)
)


@settings(max_examples=40)
@given(levels_of, st.floats(1, 1.9), st.floats(0, 5))
def test_hosts_of_one_switch_are_priced_like_levels(
    sizes: tuple[int, int, float, float], slower: float, latency_us: float
) -> None:
    """Rails per GPU: the graph of an override that does nothing against levels.

    Rails are the narrower part here. Where they are not, levels count a whole byte on
    each hop inside, the graph what one channel of M leaves there, 1 - 1 / M.
    """
    gpus, hosts, gb_s, inner_us = sizes
    inner = {"name": "nvlink", "size": gpus, "gb_s": gb_s, "latency_us": inner_us}
    outer = {"name": "leaf", "gb_s": gb_s / slower / gpus, "latency_us": latency_us}
    topology = {"gpu": GPU, "levels": [inner], "scale_out": outer}
    nothing = {"host": 0, "link": ["gpu0", "nvlink0"], "gb_s": gb_s}
    data = {"topology": topology, "count": hosts}
    tree = build_fabric(Cluster.model_validate(data))
    routed = build_fabric(Cluster.model_validate(data | {"overrides": [nothing]}))
    assert isinstance(tree, LevelFabric)
    assert isinstance(routed, RoutedFabric)
    meshes = every_mesh(tree.sizes)
    np.testing.assert_allclose(
        routed.loads(meshes).max(axis=2), tree.loads(meshes).max(axis=2), rtol=1e-9
    )
    np.testing.assert_allclose(
        routed.latency_s(meshes), tree.latency_s(meshes), rtol=1e-9, atol=1e-15
    )
