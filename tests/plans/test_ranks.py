"""Where ranks run: the groups of the mesh, on the hosts and GPUs that it says."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.plans.plan import Plan, Stage
from meshwright.plans.ranks import (
    hostfile,
    rank_map,
    rankfile,
    ranks_csv,
    visible_devices,
)
from meshwright.spec.cluster import Cluster, StagedCluster
from meshwright.spec.plan_fields import AXES
from meshwright.topology.routed_fabric import mesh_groups
from tests.helpers.command import run
from tests.helpers.every_mesh import every_mesh
from tests.topology.test_closed_form import GPU, cluster


def plan_on(mesh: Any, seats: tuple[tuple[int, ...], ...] = ()) -> Plan:
    degrees = {axis: int(np.prod(mesh[i])) for i, axis in enumerate(AXES)}
    return Plan(
        **degrees,
        micro_batch=1,
        microbatches=1,
        zero=0,
        sequence_parallel=False,
        recompute="none",
        schedule="1f1b",
        stages=(Stage(layers=1, recompute_layers=0),) * degrees["pp"],
        mesh={axis: tuple(mesh[i].tolist()) for i, axis in enumerate(AXES)},
        seats=seats,
    )


sizes_of = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)


@settings(deadline=None, max_examples=80)
@given(sizes_of, st.data())
def test_ranks_of_a_group_sit_where_the_mesh_has_the_group(
    sizes: list[int], data: st.DataObject
) -> None:
    """Routing prices the groups of `mesh_groups`; ranks must form the same ones."""
    meshes = every_mesh(sizes)
    mesh = meshes[data.draw(st.integers(0, len(meshes) - 1))]
    tree = cluster(*[(size, 100.0, 1.0, "per_gpu") for size in sizes])
    ranks = rank_map(tree, plan_on(mesh))
    place = ranks.host * sizes[0] + ranks.device
    assert sorted(place.tolist()) == list(range(int(np.prod(sizes))))
    for axis in range(len(AXES)):
        others = np.delete(ranks.coordinates, axis, axis=1)
        groups = {
            tuple(place[(others == one).all(axis=1)].tolist())
            for one in np.unique(others, axis=0)
        }
        assert groups == {tuple(one) for one in mesh_groups(mesh, axis).tolist()}


def test_tensor_ranks_count_fastest_and_stages_last() -> None:
    """2 nodes of 4: tp 2 and dp 2 in a node, pp over nodes: rank 4 is stage 1."""
    mesh = np.array([[2, 1], [1, 1], [2, 1], [1, 1], [1, 2]])
    tree = cluster((4, 100.0, 1.0, "per_gpu"), (2, 10.0, 1.0, "per_gpu"))
    lines = ranks_csv(rank_map(tree, plan_on(mesh))).splitlines()
    assert lines[0] == "rank,host,device,tp,cp,dp_shard,dp_replicate,pp"
    assert lines[2] == "1,node0,1,1,0,0,0,0"
    assert lines[3] == "2,node0,2,0,0,1,0,0"
    assert lines[5] == "4,node1,0,0,0,0,0,1"


def test_axes_across_nodes_make_a_rankfile_that_jumps() -> None:
    """tp 2 across two nodes of 2, dp 2 inside: ranks alternate between nodes."""
    mesh = np.array([[1, 2], [1, 1], [2, 1], [1, 1], [1, 1]])
    tree = cluster((2, 100.0, 1.0, "per_gpu"), (2, 10.0, 1.0, "per_gpu"))
    ranks = rank_map(tree, plan_on(mesh))
    assert rankfile(ranks).splitlines() == [
        "rank 0=node0 slot=0",
        "rank 1=node1 slot=0",
        "rank 2=node0 slot=1",
        "rank 3=node1 slot=1",
    ]
    assert hostfile(ranks) == "node0 slots=2\nnode1 slots=2\n"


NODES = [{"name": f"gpu{i}"} for i in range(4)] + [
    {"name": "pcie", "kind": "switch"},
    {"name": "nic0", "kind": "nic"},
]
LINKS = [
    {"between": [node["name"], "pcie"], "gb_s": 20, "latency_us": 1}
    for node in NODES
    if node["name"] != "pcie"
]
OUT = {"name": "leaf", "gb_s": 10, "latency_us": 1, "uplink": "per_nic"}


def hosts(*overrides: dict[str, Any]) -> Cluster:
    topology = {"gpu": GPU, "nodes": NODES, "links": LINKS, "scale_out": OUT}
    return Cluster.model_validate(
        {"topology": topology, "count": 3, "overrides": list(overrides)}
    )


def test_seats_name_the_devices_of_each_kind_of_host() -> None:
    """Node 1 has a slow link, so it is a kind of its own, with its own order."""
    found = hosts({"host": 1, "link": ["gpu0", "pcie"], "gb_s": 5})
    mesh = np.array([[4, 1], [1, 1], [1, 3], [1, 1], [1, 1]])
    ranks = rank_map(found, plan_on(mesh, ((0, 2, 1, 3), (3, 2, 1, 0))))
    assert visible_devices(ranks).splitlines() == [
        "node0 CUDA_VISIBLE_DEVICES=0,2,1,3",
        "node1 CUDA_VISIBLE_DEVICES=3,2,1,0",
        "node2 CUDA_VISIBLE_DEVICES=0,2,1,3",
    ]


def test_lost_gpus_and_hosts_keep_the_numbers_of_the_others() -> None:
    found = hosts({"node": "gpu1"}, {"host": 0})
    mesh = np.array([[3, 1], [1, 1], [1, 2], [1, 1], [1, 1]])
    ranks = rank_map(found, plan_on(mesh))
    assert visible_devices(ranks) == (
        "node1 CUDA_VISIBLE_DEVICES=0,2,3\nnode2 CUDA_VISIBLE_DEVICES=0,2,3\n"
    )


def test_parts_hold_ranks_in_the_order_of_their_stages() -> None:
    def part(name: str, gpus: int) -> dict[str, Any]:
        level = {"name": "nvlink", "size": gpus, "gb_s": 100, "latency_us": 1}
        return {"topology": {"name": name, "gpu": GPU, "levels": [level]}}

    join = {"name": "join", "gb_s": 10, "latency_us": 1}
    every = Cluster.model_validate(
        {"parts": [part("a", 4), part("b", 2)], "join": join}
    )
    staged = StagedCluster(parts=every.parts, join=every.join, order=every.parts[::-1])
    mesh = np.array([[2, 1], [1, 1], [1, 1], [1, 1], [1, 3]])
    ranks = rank_map(staged, plan_on(mesh))
    assert [ranks.hosts[host] for host in ranks.host] == ["b-0"] * 2 + ["a-0"] * 4
    assert ranks.device.tolist() == [0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        (("dgx_h100", "A&B <lab>"), ["dgx_h100-0", "A-B-lab-0"]),
        (("a b", "a;b"), ["part0-a-b-0", "part1-a-b-0"]),
        (("<", "x"), ["part0-0", "part1-x-0"]),
        (("own", "own"), ["part0-own-0", "part1-own-0"]),
    ],
)
def test_hosts_have_names_that_are_one_word(
    names: tuple[str, str], hosts: list[str]
) -> None:
    """Host files end names at blanks, and shells read them."""
    level = {"name": "nvlink", "size": 2, "gb_s": 100, "latency_us": 1}
    parts = [{"topology": {"name": n, "gpu": GPU, "levels": [level]}} for n in names]
    join = {"name": "join", "gb_s": 10, "latency_us": 1}
    every = Cluster.model_validate({"parts": parts, "join": join})
    mesh = np.array([[2, 1], [1, 1], [1, 1], [1, 1], [1, 2]])
    ranks = rank_map(every, plan_on(mesh))
    assert list(ranks.hosts) == hosts
    assert hostfile(ranks) == "".join(f"{host} slots=2\n" for host in hosts)


def test_solve_writes_ranks(tmp_path: Path) -> None:
    result = run("solve", "gpt-1.3b-2x3090-nvlink", "--ranks", str(tmp_path))
    assert result.code == 0
    with (tmp_path / "ranks.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["device"] for row in rows] == ["0", "1"]
    assert (tmp_path / "hostfile").read_text() == "node0 slots=2\n"
    assert {one.name for one in tmp_path.iterdir()} == {
        "ranks.csv", "rankfile", "hostfile", "visible_devices",
    }  # fmt: skip


def test_a_folder_for_ranks_is_made(tmp_path: Path) -> None:
    missing = tmp_path / "not" / "there"
    result = run("solve", "gpt-1.3b-2x3090-nvlink", "--ranks", str(missing))
    assert (result.code, result.stderr) == (0, "")
    assert (missing / "ranks.csv").is_file()


def test_a_file_is_no_folder_for_ranks(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    for folder in (taken, taken / "more"):
        result = run("solve", "gpt-1.3b-2x3090-nvlink", "--ranks", str(folder))
        assert result.code == 2
        assert result.stderr == f"error: --ranks {folder}: not a directory\n"
