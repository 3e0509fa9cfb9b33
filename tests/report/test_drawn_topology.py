"""What is drawn of a cluster: points that stand apart, links, a picture and a page."""

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

from meshwright.errors import SpecError
from meshwright.report.topology import draw_topology
from meshwright.spec.cluster import Cluster
from meshwright.topology.diagram import draw_cluster
from tests.helpers.clusters import bridged, hosts_of_pairs, levels, switched


def test_what_no_gpu_reaches_is_not_drawn() -> None:
    down: list[dict[str, Any]] = [{"node": "g0"}, {"node": "g1"}]
    cluster = hosts_of_pairs(*down, {"link": ["cpu0", "cpu1"]}, leaf=8)
    # Only the leaf joins cpu0 and its NIC to anything.
    drawn = {point.name for point in draw_cluster(cluster).points}
    assert drawn == {"g2", "g3", "cpu1", "nic1", "leaf0", "below leaf0 ..."}


def test_levels_above_a_host_are_drawn_as_one_branch() -> None:
    sketch = draw_cluster(hosts_of_pairs(leaf=8, spine=4))
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
    sketch = draw_cluster(Cluster.model_validate(fields))
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
    sketch = draw_cluster(cluster)
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
    sketch = draw_cluster(CLUSTERS[name])
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
    sketch = draw_cluster(levels(8, 4, 64))
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
    sketch = draw_cluster(switched(32))
    kinds = Counter(point.kind for point in sketch.points)
    assert kinds == {"gpu": 8, "nic": 4, "switch": 6}
    assert sketch.part == "the first host"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["branch", "bridged", "two hosts"])
def test_a_drawing_is_a_picture_and_a_page(name: str, tmp_path: Path) -> None:
    picture, page = draw_topology(CLUSTERS[name], tmp_path / "drawn.png")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width >= 900
    assert height >= 520
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*)</script>', text)
    assert found
    spec = json.loads(found[1])["chart"]
    links = spec["datasets"][spec["layer"][0]["data"]["name"]]
    sketch = draw_cluster(CLUSTERS[name])
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


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file or directory"):
        draw_topology(levels(2), tmp_path / "absent" / "drawn")
