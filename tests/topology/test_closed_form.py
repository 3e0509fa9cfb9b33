"""The closed form on levels against routing every ring over the compiled graph."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.loading.load import load_spec
from meshwright.planner.degrees import enumerate_degrees, enumerate_meshes
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.spec.cluster import Cluster
from meshwright.spec.hosts import HostGraph
from meshwright.spec.plan_fields import AXES
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import LevelFabric, Meshes
from meshwright.topology.graph import machine_graph
from meshwright.topology.groups import (
    DP_REPLICATE,
    DP_SHARD,
    PP,
    TP,
    group_loads,
    price_groups,
)
from meshwright.topology.routed_fabric import (
    RoutedFabric,
    build_fabric,
    mesh_groups,
    rings,
)
from tests.helpers.every_mesh import every_mesh
from tests.helpers.graphs import fabric_of_graph, tree_graph

GPU = {"memory_gib": 80, "memory_gb_s": 2000, "peak_tflops": {"bf16": 300}}


def cluster(*levels: tuple[int, float, float, str]) -> Cluster:
    """Return a cluster of levels (size, GB/s, us, uplink), innermost first."""
    names = ("size", "gb_s", "latency_us", "uplink")
    named = [
        dict(zip(names, level, strict=True)) | {"name": f"level{i}x"}
        for i, level in enumerate(levels)
    ]
    return Cluster.model_validate({"topology": {"gpu": GPU, "levels": named}})


def mesh(**axes: tuple[int, ...]) -> Meshes:
    """Return one mesh, (1, axes, levels); axes left out have one member."""
    levels = len(next(iter(axes.values())))
    return np.array([[axes.get(axis, (1,) * levels) for axis in AXES]])


uplinks = st.sampled_from(["per_gpu", "shared"])
level_of = st.tuples(st.integers(2, 4), st.floats(1, 900), st.floats(0, 20), uplinks)
clusters = st.lists(level_of, min_size=1, max_size=3).map(lambda this: cluster(*this))


def level_of_hops(fabric: RoutedFabric) -> NDArray[np.int64]:
    """Return the level of each directed link: the lower end tells how deep it is."""
    result = []
    for name in fabric.link_names:
        ends = name.split(" -> ")
        # Switches are named after their level; a GPU's link is that of level 0.
        switches = [end for end in ends if end.startswith("level")]
        result.append(max(int(end[len("level")]) for end in switches))
    return np.array(result)


@settings(deadline=None, max_examples=40)
@given(clusters, st.randoms(use_true_random=False))
def test_level_formula_is_what_routing_counts(
    tree: Cluster, chooser: random.Random
) -> None:
    """Every ring of every group, link by link, on trees of one to three levels."""
    fabric, routed = (
        LevelFabric(tree.levels, levels_of_node=len(tree.levels)),
        fabric_of_graph(tree_graph(tree.levels), tree.fan_outs),
    )
    every = every_mesh(fabric.sizes)
    some = sorted(chooser.sample(range(len(every)), min(len(every), 25)))
    meshes = every[some]
    by_level, by_link = fabric.loads(meshes), routed.loads(meshes)
    np.testing.assert_allclose(by_link.max(axis=2), by_level.max(axis=2), rtol=1e-9)
    depths = level_of_hops(routed)
    for depth in range(len(fabric.sizes)):
        found = by_link[:, :, depths == depth]
        np.testing.assert_allclose(found.max(axis=2), by_level[:, :, depth], rtol=1e-9)
        # All uplinks of a level carry the same: that is why one stands for all.
        np.testing.assert_allclose(found.min(axis=2), by_level[:, :, depth], rtol=1e-9)
    np.testing.assert_allclose(
        routed.latency_s(meshes), fabric.latency_s(meshes), rtol=1e-9, atol=1e-15
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_enumerate_meshes_is_every_factorisation_once(sizes: list[int]) -> None:
    """p^a splits over 5 axes in C(a + 4, 4) ordered ways; primes and levels multiply.

    8 GPUs: C(7, 4) = 35; 12 = 2^2 x 3: C(6, 4) x C(5, 4) = 75.
    """
    expected = math.prod(
        math.comb(power + len(AXES) - 1, len(AXES) - 1)
        for size in sizes
        for power in _powers(size)
    )
    meshes = every_mesh(sizes)
    assert meshes.shape == (expected, len(AXES), len(sizes))
    assert (meshes.prod(axis=1) == sizes).all()
    assert len({one.tobytes() for one in meshes}) == expected
    assert enumerate_degrees(sizes)[1].sum() == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=3), st.data())
def test_meshes_inside_nodes_are_those_that_the_rule_leaves(
    sizes: list[int], data: st.DataObject
) -> None:
    """None of the degrees is lost: some mesh of each holds its TP groups so."""
    inside = data.draw(st.integers(1, len(sizes)))
    degrees, copies = enumerate_degrees(sizes, inside)
    assert (degrees == enumerate_degrees(sizes)[0]).all()
    for degree, count in zip(degrees, copies.tolist(), strict=True):
        every = enumerate_meshes(sizes, degree)
        held = every[:, 0, :inside].prod(axis=1)
        expected = every[held == held.max()]
        assert expected.tolist() == enumerate_meshes(sizes, degree, inside).tolist()
        assert len(expected) == count


def _powers(number: int) -> list[int]:
    powers = []
    for prime in (2, 3, 5, 7, 11):
        power = 0
        while number % prime == 0:
            number //= prime
            power += 1
        powers.append(power)
    assert number == 1
    return powers


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_groups_partition_the_ranks(sizes: list[int], data: st.DataObject) -> None:
    meshes = every_mesh(sizes)
    found = meshes[data.draw(st.integers(0, len(meshes) - 1))]
    world = math.prod(sizes)
    groups = [mesh_groups(found, axis) for axis in range(len(AXES))]
    for axis, ranks in enumerate(groups):
        members = int(found[axis].prod())
        assert ranks.shape == (world // members, members)
        assert sorted(ranks.ravel().tolist()) == list(range(world))
    # Two ranks that share groups on two axes are the same rank: a grid.
    place: dict[int, list[int]] = {rank: [] for rank in range(world)}
    for ranks in groups:
        for row in ranks.tolist():
            for rank in row:
                place[rank].append(row[0])
    assert len({tuple(first) for first in place.values()}) == world


def test_groups_of_two_nodes_by_hand() -> None:
    """2 nodes of 4: tp 2 innermost, dp_shard 2 beside it in the node, pp over nodes.

    Rank = 4 x node + 2 x dp + tp.
    """
    found = mesh(tp=(2, 1), dp_shard=(2, 1), pp=(1, 2))[0]
    assert mesh_groups(found, TP).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    by_shard = sorted(mesh_groups(found, DP_SHARD).tolist())
    assert by_shard == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sorted(mesh_groups(found, PP).tolist()) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert rings(np.array([[0, 1, 2]])) == [(0, 1), (1, 2), (2, 0)]


def s_per_byte(tree: Cluster, meshes: Meshes, axis: int) -> float:
    """Return the price of an axis; closed form and routing must agree on it."""
    price = price_groups(LevelFabric(tree.levels), meshes).s_per_byte[0, axis]
    routed = price_groups(
        fabric_of_graph(tree_graph(tree.levels), tree.fan_outs), meshes
    ).s_per_byte[0, axis]
    assert price == pytest.approx(routed, rel=1e-9)
    return float(price)


NODES = (8, 300.0, 1.5, "per_gpu")


def test_eight_rings_share_one_network_adapter() -> None:
    """tp 8 in the node leaves 8 data-parallel rings, all through one 12.5 GB/s port.

    Each byte of each ring leaves the node once: 8 / 12.5e9 s.
    """
    tree = cluster(NODES, (4, 12.5, 2.5, "shared"))
    got = s_per_byte(tree, mesh(tp=(8, 1), dp_shard=(1, 4)), DP_SHARD)
    assert got == pytest.approx(8 / 12.5e9, rel=1e-9)


def test_one_ring_over_all_gpus_has_the_adapter_to_itself() -> None:
    """tp 1: one ring of 32 enters and leaves each node once: 1 / 12.5e9 s."""
    tree = cluster(NODES, (4, 12.5, 2.5, "shared"))
    got = s_per_byte(tree, mesh(dp_shard=(8, 4)), DP_SHARD)
    assert got == pytest.approx(1 / 12.5e9, rel=1e-9)


def test_four_of_eight_rings_share_the_adapter() -> None:
    """tp 2 leaves rings of 4 members a node, 2 of them: 2 / 12.5e9 s."""
    tree = cluster(NODES, (4, 12.5, 2.5, "shared"))
    got = s_per_byte(tree, mesh(tp=(2, 1), dp_shard=(4, 4)), DP_SHARD)
    assert got == pytest.approx(2 / 12.5e9, rel=1e-9)


def test_rails_take_one_ring_each() -> None:
    """An adapter for each GPU: 8 rings over 8 x 25 GB/s, 1 / 25e9 s each."""
    tree = cluster(NODES, (4, 25.0, 2.0, "per_gpu"))
    got = s_per_byte(tree, mesh(tp=(8, 1), dp_shard=(1, 4)), DP_SHARD)
    assert got == pytest.approx(1 / 25e9, rel=1e-9)


def test_tensor_parallelism_across_nodes_pays_the_network() -> None:
    """tp 16 over two nodes: one ring of 16 through 8 rails, 200 GB/s, not 300.

    tp 2 across nodes, one GPU in each: 8 rings over 8 rails, 25 GB/s each; inside the
    node the same two GPUs have 300 GB/s.
    """
    tree = cluster(NODES, (2, 25.0, 2.0, "per_gpu"))
    wide = s_per_byte(tree, mesh(tp=(8, 2)), TP)
    assert wide == pytest.approx(1 / 200e9, rel=1e-9)
    across = s_per_byte(tree, mesh(tp=(1, 2), dp_shard=(8, 1)), TP)
    assert across == pytest.approx(1 / 25e9, rel=1e-9)
    inside = s_per_byte(tree, mesh(tp=(2, 1), dp_shard=(4, 2)), TP)
    assert inside == pytest.approx(1 / 300e9, rel=1e-9)


def test_few_hops_of_a_ring_leave_nodes() -> None:
    """tp 16 over two nodes: 14 hops of 3 us in them and one of 7 us between."""
    tree = cluster(NODES, (2, 25.0, 2.0, "per_gpu"))
    latency_s = price_groups(LevelFabric(tree.levels), mesh(tp=(8, 2))).latency_s[0]
    assert 15 * latency_s[TP] == pytest.approx((14 * 3 + 7) * 1e-6, rel=1e-9)


def test_latency_counts_up_and_down() -> None:
    """Across nodes: 2 x (1.5 + 2.0) = 7 us; inside one: 2 x 1.5 = 3 us."""
    tree = cluster(NODES, (2, 25.0, 2.0, "per_gpu"))
    meshes = mesh(tp=(8, 1), dp_shard=(1, 2))
    latency_s = price_groups(LevelFabric(tree.levels), meshes).latency_s[0]
    assert latency_s[TP] == pytest.approx(3e-6, rel=1e-9)
    assert latency_s[DP_SHARD] == pytest.approx(7e-6, rel=1e-9)
    assert latency_s[PP] == latency_s[DP_REPLICATE] == 0


def test_oversubscribed_spine_is_the_bottleneck() -> None:
    """2 leaves of 2 nodes of 4: rails of 50 GB/s below, 2:1 above, 25 GB/s a rail.

    tp 4 in the node, dp 4 over all nodes: 4 rings. A node's 4 rails carry 4 rings,
    1 / 50e9. A leaf has 8 GPUs and 8 x 25 GB/s up: a ring has 2 members below it, so
    4 rings share 200 GB/s, 1 / 50e9 too. dp 2 over leaves alone: 8 rings of one
    member a leaf, 8 / 200e9 = 1 / 25e9.
    """
    tree = cluster(
        (4, 300.0, 1.0, "per_gpu"),
        (2, 50.0, 2.0, "per_gpu"),
        (2, 25.0, 1.0, "per_gpu"),
    )
    all_nodes = mesh(tp=(4, 1, 1), dp_shard=(1, 2, 2))
    assert s_per_byte(tree, all_nodes, DP_SHARD) == pytest.approx(1 / 50e9, rel=1e-9)
    leaves = mesh(tp=(4, 1, 1), dp_shard=(1, 2, 1), dp_replicate=(1, 1, 2))
    assert s_per_byte(tree, leaves, DP_REPLICATE) == pytest.approx(1 / 25e9, rel=1e-9)
    loads = LevelFabric(tree.levels).loads(leaves)[0]
    np.testing.assert_allclose(loads[DP_REPLICATE], [1 / 300e9, 1 / 50e9, 1 / 25e9])


def test_most_loaded_link_is_named() -> None:
    tree = cluster(NODES, (4, 12.5, 2.5, "shared"))
    fabric = LevelFabric(tree.levels)
    busiest = group_loads(fabric, mesh(tp=(8, 1), dp_shard=(1, 4))[0], 1).argmax(axis=1)
    assert fabric.link_names[busiest[TP]].startswith("gpu0 ->")
    assert fabric.link_names[busiest[DP_SHARD]].endswith("level1x0")


Links = list[tuple[str, str, float]]


def explicit(gpus: dict[str, int], switches: list[str], links: Links) -> Cluster:
    nodes: list[dict[str, object]] = [
        {"name": name, "kind": "gpu", "host": host} for name, host in gpus.items()
    ]
    nodes += [{"name": name, "kind": "switch"} for name in switches]
    wires = [{"between": (a, b), "gb_s": g, "latency_us": 2} for a, b, g in links]
    topology = {"gpu": GPU, "nodes": nodes, "links": wires}
    return Cluster.model_validate({"topology": topology})


PAIRS: Links = [
    ("a", "b", 56.25),
    ("c", "d", 56.25),
    *((gpu, "pcie", 15.5) for gpu in "abcd"),
]


def test_bridge_beside_pcie_carries_its_pair() -> None:
    """Two bridged pairs on one PCIe switch: tp 2 in the pair pays 1 / 56.25e9.

    dp 2 across pairs: rings (a, c) and (b, d), each GPU's own x16: 1 / 15.5e9. One
    ring a, b, c, d of four: bridge, PCIe, bridge, PCIe, so 1 / 15.5e9 again.
    """
    fabric = build_fabric(explicit(dict.fromkeys("abcd", 0), ["pcie"], PAIRS))
    assert fabric.sizes == (4,)
    paths = price_groups(fabric, mesh(tp=(2,), dp_shard=(2,)))
    assert paths.s_per_byte[0, TP] == pytest.approx(1 / 56.25e9, rel=1e-9)
    assert paths.s_per_byte[0, DP_SHARD] == pytest.approx(1 / 15.5e9, rel=1e-9)
    # The bridge is one hop of 2 us, PCIe two.
    assert paths.latency_s[0, TP] == pytest.approx(2e-6, rel=1e-9)
    assert paths.latency_s[0, DP_SHARD] == pytest.approx(4e-6, rel=1e-9)
    ring = price_groups(fabric, mesh(dp_shard=(4,)))
    assert ring.s_per_byte[0, DP_SHARD] == pytest.approx(1 / 15.5e9, rel=1e-9)


def test_detour_over_wide_links_beats_a_narrow_cable() -> None:
    """A 5 GB/s cable beside two hops of 31.5: traffic takes the switch."""
    links: Links = [("a", "b", 5.0), ("a", "pcie", 31.5), ("b", "pcie", 31.5)]
    fabric = build_fabric(explicit({"a": 0, "b": 0}, ["pcie"], links))
    paths = price_groups(fabric, mesh(tp=(2,)))
    assert paths.s_per_byte[0, TP] == pytest.approx(1 / 31.5e9, rel=1e-9)
    assert paths.latency_s[0, TP] == pytest.approx(4e-6, rel=1e-9)


SQUARE: Links = [("a", "b", 50.0), ("b", "c", 50.0), ("c", "d", 50.0), ("d", "a", 50.0)]


@settings(deadline=None, max_examples=30)
@given(st.permutations(SQUARE), st.lists(st.booleans(), min_size=4, max_size=4))
def test_order_of_links_does_not_choose_between_equal_routes(
    links: list[tuple[str, str, float]], turned: list[bool]
) -> None:
    """Four GPUs in a square: opposite corners have two routes, equally short."""
    meshes = every_mesh((4,))
    written = [
        (b, a, g) if turn else (a, b, g)
        for (a, b, g), turn in zip(links, turned, strict=True)
    ]
    first = build_fabric(explicit(dict.fromkeys("abcd", 0), [], SQUARE))
    second = build_fabric(explicit(dict.fromkeys("abcd", 0), [], written))
    one, other = price_groups(first, meshes), price_groups(second, meshes)
    np.testing.assert_allclose(one.s_per_byte, other.s_per_byte, rtol=1e-12)
    np.testing.assert_allclose(one.latency_s, other.latency_s, rtol=1e-12)


def test_two_links_between_the_same_ends_do_not_hide_each_other() -> None:
    """An NVLink bridge and a slow cable are not to become 5 GB/s alone."""
    with pytest.raises(ValidationError, match="linked twice"):
        explicit({"a": 0, "b": 0}, [], [("a", "b", 50.0), ("b", "a", 5.0)])


def test_two_rings_share_a_cable_between_hosts() -> None:
    """2 hosts of 2 GPUs on a switch each, one 10 GB/s cable: 2 rings, 2 / 10e9."""
    links: Links = [(gpu, "x", 30.0) for gpu in "ab"]
    links += [(gpu, "y", 30.0) for gpu in "cd"]
    links += [("x", "y", 10.0)]
    fabric = build_fabric(explicit({"a": 0, "b": 0, "c": 1, "d": 1}, ["x", "y"], links))
    assert fabric.sizes == (2, 2)
    paths = price_groups(fabric, mesh(tp=(2, 1), dp_shard=(1, 2)))
    assert paths.s_per_byte[0, DP_SHARD] == pytest.approx(2 / 10e9, rel=1e-9)
    assert paths.s_per_byte[0, TP] == pytest.approx(1 / 30e9, rel=1e-9)
    one = price_groups(fabric, mesh(dp_shard=(2, 2)))
    assert one.s_per_byte[0, DP_SHARD] == pytest.approx(1 / 10e9, rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.randoms(use_true_random=False), st.data())
def test_any_graph_is_priced_by_counting_its_rings(
    gpus: int, chooser: random.Random, data: st.DataObject
) -> None:
    """A random tree has one route between two GPUs: count it without the fabric."""
    names = [f"g{i}" for i in range(gpus)]
    switches = [f"s{i}" for i in range(3)]
    links: Links = [("s0", "s1", 40.0), ("s1", "s2", 20.0)]
    links += [(n, chooser.choice(switches), chooser.uniform(1, 99)) for n in names]
    tree = explicit(dict.fromkeys(names, 0), switches, links)
    graph = machine_graph(HostGraph(tree.topology.nodes, tree.topology.links))
    fabric = fabric_of_graph(graph, tree.fan_outs)
    every = every_mesh((gpus,))
    found = every[data.draw(st.integers(0, len(every) - 1))]
    for axis in range(len(AXES)):
        busy: dict[tuple[str, str], int] = {}
        for group in mesh_groups(found, axis).tolist():
            if len(group) > 1:
                for a, b in zip(group, group[1:] + group[:1], strict=True):
                    nodes = nx.shortest_path(graph, names[a], names[b])
                    for hop in itertools.pairwise(nodes):
                        busy[hop] = busy.get(hop, 0) + 1
        worst = max(
            (n / graph.edges[hop]["gb_s"] / 1e9 for hop, n in busy.items()), default=0
        )
        price = fabric.loads(found[None])[0, axis].max()
        assert price == pytest.approx(worst, rel=1e-9)


def test_unconnected_gpus_are_refused() -> None:
    with pytest.raises((SpecError, ValidationError), match="join"):
        build_fabric(explicit({"a": 0, "b": 0}, [], []))


def rates_of(graph: nx.Graph[str]) -> list[float]:
    return sorted(graph.edges[edge]["gb_s"] for edge in graph.edges)


def test_graph_of_levels_has_its_links() -> None:
    """2 nodes of 4: 8 links to NVLink switches, 2 trunks of 4 x 25 GB/s."""
    node = (4, 300.0, 1.0, "per_gpu")
    graph = tree_graph(cluster(node, (2, 25.0, 2.0, "per_gpu")).levels)
    assert rates_of(graph) == [100.0] * 2 + [300.0] * 8
    shared = tree_graph(cluster(node, (2, 25.0, 2.0, "shared")).levels)
    assert rates_of(shared)[:2] == [25.0] * 2


def solved(this: Cluster) -> Outcome:
    spec = load_spec("gpt-1.3b-2xa100-pcie")
    data: dict[str, Any] = spec.model_dump() | {"cluster": this.model_dump()}
    return solve(Spec.model_validate(data))


def answer(outcome: Outcome) -> dict[str, object]:
    """Return what an outcome says, but not which links carry it."""
    assert outcome.best is not None
    best = outcome.best.model_dump(exclude={"links", "all_links"})
    loads = [(load.phase, load.gb, load.seconds) for load in outcome.best.links]
    return best | {"status": outcome.status, "loads": loads}


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(st.permutations("zyxwvuts"), st.randoms(use_true_random=False))
def test_renaming_changes_nothing_in_a_solve(
    letters: list[str], chooser: random.Random
) -> None:
    """New names for every node, links in another order and direction, hosts swapped."""
    links: Links = [(g, "x", 30.0) for g in "ab"] + [(g, "y", 30.0) for g in "cd"]
    links += [("a", "b", 112.5), ("c", "d", 112.5), ("x", "y", 12.0)]
    before = explicit({"a": 0, "b": 0, "c": 1, "d": 1}, ["x", "y"], links)
    named = dict(zip("abcdxy", letters, strict=False))
    renamed = [
        (named[a], named[b], g) if chooser.random() < 0.5 else (named[b], named[a], g)
        for a, b, g in links
    ]
    chooser.shuffle(renamed)
    hosts = {named[g]: host for g, host in zip("abcd", (7, 7, 3, 3), strict=True)}
    after = explicit(hosts, [named["y"], named["x"]], renamed)
    assert answer(solved(before)) == answer(solved(after))


def test_levels_and_the_same_graph_solve_alike() -> None:
    """Four GPUs on one switch, once as a level, once as nodes and links."""
    by_level = cluster((4, 31.5, 2.0, "per_gpu"))
    wires: Links = [(gpu, "switch", 31.5) for gpu in "abcd"]
    by_nodes = explicit(dict.fromkeys("abcd", 0), ["switch"], wires)
    assert answer(solved(by_level)) == answer(solved(by_nodes))
