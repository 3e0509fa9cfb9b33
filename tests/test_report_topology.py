"""What is said and drawn of a cluster: levels, GPUs, widest paths, NICs, a picture."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.report.drawing import draw_topology
from meshwright.report.render import sections_as_markdown, sections_as_text
from meshwright.report.tables import Lines, Section, Table
from meshwright.report.topology import topology_sections
from meshwright.spec.cluster import Cluster
from meshwright.topology.kinds import host_kinds
from meshwright.topology.pairs import pair_bandwidths
from meshwright.topology.sketch import sketch_cluster

GPU: dict[str, Any] = {
    "name": "own", "memory_gib": 80, "memory_gb_s": 2000,
    "peak_tflops": {"bf16": 300}, "peer_links": 6, "peer_link_gb_s": 25,
    "pcie_gb_s": 12.8,
}  # fmt: skip


def levels(*sizes: int, uplink: str = "per_gpu", **more: Any) -> Cluster:
    rates = (300, 25, 25)
    own = [
        {"name": f"level{i}", "size": size, "gb_s": rates[i], "latency_us": i + 1,
         "uplink": uplink if i else "per_gpu"}
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    topology = {"name": "tree", "gpu": GPU, "levels": own, **more}
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
    assert "300 between each two of 8" in str(same)
    assert len(table(bridged(hosts=5), "Between two GPUs of a host")) == 4
    assert len(pair_bandwidths(levels(200, 2)).gpus) == 128


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
    assert sketch_cluster(cluster).points


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
    names = [kind.name for kind in host_kinds(cluster)]
    assert names == ["node1", "node0"]
    pairs, rated = pair_bandwidths(cluster), pair_bandwidths(whole)
    assert pairs.gb_s[0] == rated.gb_s[0][:8] == (None, *[300] * 3, *[25] * 4)


def test_what_no_gpu_reaches_is_not_drawn() -> None:
    down: list[dict[str, Any]] = [{"node": "g0"}, {"node": "g1"}]
    cluster = hosts_of_pairs(*down, {"link": ["cpu0", "cpu1"]}, leaf=8)
    # Only the leaf joins cpu0 and its NIC to anything.
    drawn = {point.name for point in sketch_cluster(cluster).points}
    assert drawn == {"g2", "g3", "cpu1", "nic1", "leaf0", "below leaf0 ..."}


def test_levels_above_a_host_are_drawn_as_one_branch() -> None:
    sketch = sketch_cluster(hosts_of_pairs(leaf=8, spine=4))
    rests = {p.name: p.count for p in sketch.points if p.kind == "rest"}
    assert sorted(rests.values()) == [3, 7]
    assert sketch.part == "node0, one of 32 hosts"
    rails = {line.ends: line.rails for line in sketch.lines}
    assert rails["nic0", "leaf0"] == 1
    assert rails["leaf0", "spine0"] == 8 * 2
    assert rails["below leaf0 ...", "leaf0"] == 7 * 2
    assert rails["below spine0 ...", "spine0"] == 3 * 16


def test_nics_of_gpus_stand_between_them_and_the_switch_outside() -> None:
    broken = [{"host": 1, "link": ["gpu1", "level00"], "gb_s": 7}]
    fields = levels(8, 4).model_dump() | {"overrides": broken}
    sketch = sketch_cluster(Cluster.model_validate(fields))
    y = {point.name: point.y for point in sketch.points}
    assert y["level00"] < y["gpu0"] < y["nic0"] == y["nic7"] < y["level10"]


CLUSTERS = {
    "one": levels(1),
    "two": levels(2),
    "whole tree": levels(8, 2),
    "branch": levels(8, 4, 64),
    "rack": levels(72, 4),
    "shared": levels(8, 32, uplink="shared"),
    "bridged": bridged(),
    "switched": switched(1),
    "two hosts": switched(2),
    "many hosts": switched(32),
    "levels above": hosts_of_pairs(leaf=8, spine=4),
    "broken": hosts_of_pairs({"node": "nic0"}, leaf=8),
}
each_cluster = pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)


@each_cluster
def test_points_stand_apart_and_lines_end_at_points(cluster: Cluster) -> None:
    sketch = sketch_cluster(cluster)
    at = {point.name: (point.x, point.y) for point in sketch.points}
    assert len(at) == len(sketch.points)
    assert len(sketch.points) <= 48
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in at.values())
    for (ax, ay), (bx, by) in itertools.combinations(at.values(), 2):
        # At least 25 px on a picture of 900 x 520.
        assert math.hypot(900 * (ax - bx), 520 * (ay - by)) > 25
    for line in sketch.lines:
        assert set(line.ends) <= set(at)


@pytest.mark.parametrize(
    "name", ["bridged", "switched", "two hosts", "whole tree", "levels above"]
)
def test_no_link_between_gpus_and_switches_is_hidden_by_a_gpu(name: str) -> None:
    sketch = sketch_cluster(CLUSTERS[name])
    at = {p.name: (900 * p.x, 520 * p.y) for p in sketch.points}
    for line in sketch.lines:
        (ax, ay), (bx, by) = (at[end] for end in line.ends)
        for point in sketch.points:
            if point.kind == "gpu" and point.name not in line.ends:
                x, y = at[point.name]
                length = math.hypot(bx - ax, by - ay)
                along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length
                beside = abs((x - ax) * (by - ay) - (y - ay) * (bx - ax)) / length
                assert not (0 < along < length) or beside > 4, (line, point)


def test_a_branch_counts_what_it_leaves_out() -> None:
    sketch = sketch_cluster(levels(8, 4, 64))
    counts = {point.name: (point.kind, point.count) for point in sketch.points}
    assert counts["gpu0"] == ("gpu", 2048)
    assert counts["level00"] == ("switch", 256)
    assert counts["level01 ..."] == ("rest", 3)
    assert counts["level11 ..."] == ("rest", 63)
    assert sum(kind == "gpu" for kind, _ in counts.values()) == 8
    rails = {line.ends: line.rails for line in sketch.lines}
    # Eight uplinks leave a host, and three hosts are not drawn.
    assert rails["level00", "level10"] == 8
    assert rails["level01 ...", "level10"] == 24


def test_a_large_graph_is_cut_to_its_first_host() -> None:
    sketch = sketch_cluster(switched(32))
    kinds = Counter(point.kind for point in sketch.points)
    assert kinds == {"gpu": 8, "nic": 4, "switch": 6}
    assert sketch.part == "the first host"


@pytest.mark.parametrize("name", ["branch", "bridged", "two hosts"])
def test_a_drawing_is_a_picture_and_a_page(name: str, tmp_path: Path) -> None:
    picture, page = draw_topology(CLUSTERS[name], tmp_path / "drawn.png")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width >= 900
    assert height >= 520
    text = page.read_text(encoding="utf-8")
    found = re.search(r"const spec = (.*);", text)
    assert found
    spec = json.loads(found[1])
    links = spec["datasets"][spec["layer"][0]["data"]["name"]]
    sketch = sketch_cluster(CLUSTERS[name])
    assert sorted(row["GB/s"] for row in links) == sorted(
        line.gb_s for line in sketch.lines
    )
    assert 'src="http' not in text, "the page loads nothing"


@pytest.mark.parametrize("library", ["altair", "vl_convert"])
def test_a_missing_library_is_named(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SpecError, match=r"pip install 'meshwright\[plot\]'"):
        draw_topology(levels(2), tmp_path / "drawn")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file or directory"):
        draw_topology(levels(2), tmp_path / "absent" / "drawn")
