"""What is said of a cluster: levels, hosts, GPUs, pairs of them, NICs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import catalog
from meshwright.report.tables import (
    Lines,
    Section,
    Table,
    sections_as_markdown,
    sections_as_text,
)
from meshwright.report.topology import topology_data, topology_sections
from meshwright.spec.cluster import Cluster
from meshwright.topology.diagram import draw_cluster, pair_bandwidths, summarise_hosts
from tests.helpers.clusters import GPU, bridged, graph, hosts_of_pairs, levels


def table(cluster: Cluster, title: str) -> dict[str, tuple[str, ...]]:
    """Return the rows of a table by their first cell."""
    section = section_of(cluster, title)
    assert isinstance(section, Table)
    return {row[0]: row[1:] for row in section.rows}


def section_of(cluster: Cluster, title: str) -> Section:
    (found,) = [s for s in topology_sections(cluster) if s.title.startswith(title)]
    return found


def test_levels_say_what_a_gpu_has_of_them() -> None:
    rows = table(levels(8, 4, 2), "Levels")
    # children, GPUs, GB/s per GPU, uplinks of a child, their sum, latency
    assert rows["level0"] == ("8", "8", "300", "1 x 300", "300", "1")
    assert rows["level1"] == ("4", "32", "25", "8 x 25", "200", "2")
    assert rows["level2"] == ("2", "64", "25", "32 x 25", "800", "3")


def test_a_shared_uplink_is_divided() -> None:
    rows = table(levels(8, 4, uplink="shared"), "Levels")
    assert rows["level1"] == ("4", "32", "3.125", "1 x 25", "25", "2")


def test_facts_of_the_gpu_and_the_host_are_told() -> None:
    host = {"memory_gib": 2048, "pcie_gb_s": 25, "memory_gb_s": 409.6}
    text = sections_as_text(topology_sections(levels(8, 4, host=host)))
    for fact in (
        "32 x own, in 4 hosts of 8",
        "host memory 2,048 GiB at 409.6 GB/s, 25 GB/s to each GPU",
        "80 GiB", "2,000 GB/s", "bf16 300 TFLOP/s", "6 x 25 GB/s", "12.8 GB/s",
    ):  # fmt: skip
        assert fact in text
    assert "| level1 | 4 | 32 |" in sections_as_markdown(
        topology_sections(levels(8, 4))
    )


def test_two_gpus_of_different_nodes_share_one_uplink() -> None:
    pairs = pair_bandwidths(levels(8, 2))
    assert len(pairs.gpus) == 16
    for a, b in itertools.permutations(range(16), 2):
        assert pairs.gb_s[a][b] == (300 if a // 8 == b // 8 else 25)


def test_bridges_are_wide_and_ways_between_sockets_are_not() -> None:
    rows = table(bridged(), "Between two GPUs")
    assert rows["g0.0"] == ("-", "56", "16", "16")
    assert rows["g0.3"] == ("16", "16", "56", "-")
    assert table(bridged(), "NICs") == {"nic0": ("12.5", "cpu0.0 15, fabric 12.5")}


def test_gpus_pass_on_only_what_has_no_other_way() -> None:
    chain = [{"name": name} for name in "abc"]
    ends = {("a", "b"): 50.0, ("b", "c"): 25.0}
    pairs = pair_bandwidths(graph(chain, ends))
    assert pairs.gb_s == ((None, 50, 25), (50, None, 25), (25, 25, None))
    bus = [*chain, {"name": "bus", "kind": "switch"}]
    past = ends | {(name, "bus"): 5.0 for name in "abc"}
    assert pair_bandwidths(graph(bus, past)).gb_s[0] == (None, 50, 5)


def test_equally_short_ways_add_up() -> None:
    nodes = [{"name": name} for name in "ab"]
    nodes += [{"name": name, "kind": "switch"} for name in "st"]
    ways = {(gpu, switch): 10.0 for gpu in "ab" for switch in "st"}
    assert pair_bandwidths(graph(nodes, ways)).gb_s == ((None, 20), (20, None))


@given(st.data())
@settings(max_examples=60)
def test_pairs_agree_with_a_search_over_all_ways(data: st.DataObject) -> None:
    gpus, switches = ["a", "b", "c"], ["s", "t", "u"]
    ends = list(itertools.combinations([*gpus, *switches], 2))
    rates = st.sampled_from([None, None, 5.0, 11.0, 23.0])
    links = {pair: data.draw(rates) for pair in ends}
    tree = {(name, "s"): 1.0 for name in [*gpus, "t", "u"]}
    known = tree | {pair: rate for pair, rate in links.items() if rate is not None}
    known = {pair: rate for pair, rate in known.items() if pair[::-1] not in tree}
    nodes = [{"name": g} for g in gpus]
    nodes += [{"name": s, "kind": "switch"} for s in switches]
    pairs = pair_bandwidths(graph(nodes, known))
    rate_of = known | {pair[::-1]: rate for pair, rate in known.items()}
    for (i, a), (j, b) in itertools.permutations(enumerate(gpus), 2):
        # A switch is always between, so that no way is over the third GPU.
        ways = [
            [rate_of[hop] for hop in itertools.pairwise((a, *between, b))]
            for count in range(len(switches) + 1)
            for between in itertools.permutations(switches, count)
            if all(hop in rate_of for hop in itertools.pairwise((a, *between, b)))
        ]
        lengths = [sum(1 / rate for rate in way) for way in ways]
        widths = [
            min(way)
            for way, length in zip(ways, lengths, strict=True)
            if length == pytest.approx(min(lengths))
        ]
        told = pairs.gb_s[i][j]
        assert told is not None
        assert min(widths) <= told * (1 + 1e-9)
        assert told <= sum(widths) * (1 + 1e-9)


def test_large_clusters_show_one_host() -> None:
    pairs = pair_bandwidths(levels(8, 4, 2))
    assert (len(pairs.gpus), pairs.range_gb_s) == (8, (300, 300))
    same = section_of(levels(8, 4, 2), "Between two GPUs of a host")
    assert "300 between any two of 8" in str(same)
    assert len(table(bridged(hosts=5), "Between two GPUs of a host")) == 4
    assert len(pair_bandwidths(levels(200, 2)).gpus) == 128


def test_data_of_a_level_too_wide_for_a_graph_lists_no_links() -> None:
    data = topology_data(levels(3_000, 2))
    (host,) = data["hosts"]
    assert (host["count"], host["gpus"], host["nics"]) == (2, 3_000, 3_000)
    assert (data["links"], len(data["pairs"]["gpus"])) == ([], 128)


def test_one_gpu_has_no_pairs() -> None:
    text = sections_as_text(topology_sections(levels(1)))
    assert "Between" not in text
    assert "1 x own, in one host" in text


def every_topology() -> list[str]:
    folder = catalog.locate("topologies", "dgx-a100", Path()).parent
    return sorted(path.stem for path in folder.glob("*.yaml") if path.stem != "aliases")


@pytest.mark.parametrize("name", every_topology())
def test_every_bundled_topology_is_told_and_sketched(name: str) -> None:
    path = catalog.locate("topologies", name, Path())
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    cluster = Cluster.model_validate({"topology": {**fields, "gpu": GPU}})
    text = sections_as_text(topology_sections(cluster))
    assert f"{cluster.gpus:,} x own" in text
    assert max(map(len, text.splitlines())) <= 120
    assert draw_cluster(cluster).points


def test_levels_above_hosts_count_uplinks_of_nics() -> None:
    cluster = hosts_of_pairs({"host": 3, "node": "nic1"}, leaf=8, spine=4)
    rows = table(cluster, "Levels above hosts")
    # children, GPUs, GB/s per GPU, uplinks of a child, their sum, latency
    assert rows["leaf"] == ("8", "32", "10", "2 x 20", "40", "2")
    assert rows["spine"] == ("4", "128", "10", "16 x 20", "320", "2")
    assert table(cluster, "NICs")["nic1"] == ("25", "cpu1 32, leaf0 20")


def test_hosts_say_what_they_lack() -> None:
    cluster = hosts_of_pairs(
        {"host": 3, "node": "nic1"},
        {"host": 4, "link": ["g0", "cpu0"], "gb_s": 12.5},
        {"host": 5, "link": ["g0", "cpu0"], "gb_s": 12.5},
        {"link": ["cpu1", "cpu0"], "gb_s": 8},
        leaf=8,
    )
    section = section_of(cluster, "Hosts")
    assert section == Lines(
        "Hosts",
        (
            "node0 to node2, node6, node7: cpu0 - cpu1 has 8 of 16 GB/s",
            "node3: nic1 is down, cpu0 - cpu1 has 8 of 16 GB/s",
            "node4, node5: g0 - cpu0 has 12.5 of 25 GB/s, cpu0 - cpu1 has 8 of 16 GB/s",
        ),
    )


def test_a_pair_uses_one_rail_of_a_host_that_is_broken_as_of_one_that_is_not() -> None:
    host = {"gpus": 8, "memory_gib": 1, "pcie_gb_s": 1, "memory_gb_s": 1}
    whole = levels(4, 2, 2, host=host)
    broken = [{"host": 0, "link": ["gpu1", "level00"], "gb_s": 7}]
    cluster = Cluster.model_validate(whole.model_dump() | {"overrides": broken})
    names = [kind.name for kind in summarise_hosts(cluster)]
    assert names == ["node1", "node0"]
    pairs, rated = pair_bandwidths(cluster), pair_bandwidths(whole)
    assert pairs.gb_s[0] == rated.gb_s[0][:8] == (None, *[300] * 3, *[25] * 4)
