"""Groups of ranks, against those that the frameworks' own builders made.

`python -m benchmarks.rank_groups` records the answers of Megatron Core's RankGenerator
in its two orders, torchtitan, DeepSpeed and Accelerate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.plans.ranks import rank_map
from meshwright.spec.plan_fields import AXES
from meshwright.topology.groups import expert_mesh
from meshwright.topology.routed_fabric import mesh_groups
from tests.plans.test_ranks import plan_on
from tests.topology.test_closed_form import cluster

CASES = json.loads(
    (Path(__file__).parents[1] / "data" / "rank_groups.json").read_text()
)

SPANS = {
    "tp": ("tp",),
    "cp": ("cp",),
    "pp": ("pp",),
    "dp": ("dp_shard", "dp_replicate"),
    "dp-cp": ("cp", "dp_shard", "dp_replicate"),
    "dp_shard": ("dp_shard",),
    "dp_replicate": ("dp_replicate",),
}
"""The axes that the groups of each name span."""

Groups = set[tuple[int, ...]]


def meshes_of(degrees: dict[str, Any]) -> Any:
    """Return a mesh that has the frameworks' order: hosts hold what counts faster.

    In Megatron's second order a host holds pipelines, and data parallelism is outside.
    """
    inner = [degrees[axis] for axis in AXES]
    outer = [1] * len(AXES)
    if degrees["order"] == "tp-cp-ep-pp-dp":
        for axis in ("dp_shard", "dp_replicate"):
            place = AXES.index(axis)
            inner[place], outer[place] = 1, inner[place]
    return np.array([inner, outer]).T


def placed_groups(mesh: Any, spanned: tuple[str, ...]) -> Groups:
    """Return the groups of GPUs whose ranks differ in some axes alone."""
    sizes = [int(size) for size in mesh.prod(axis=0)]
    tree = cluster(*[(size, 100.0, 1.0, "per_gpu") for size in sizes])
    ranks = rank_map(tree, plan_on(mesh))
    place = ranks.host * sizes[0] + ranks.device
    others = [i for i, axis in enumerate(AXES) if axis not in spanned]
    keys = ranks.coordinates[:, others]
    return {
        tuple(sorted(place[(keys == one).all(axis=1)].tolist()))
        for one in np.unique(keys, axis=0)
    }


def expert_groups(mesh: Any, ep: int) -> dict[str, Groups]:
    """Return the groups that share out experts, and those that hold the same ones."""
    found = expert_mesh(mesh[None], np.array([ep]))[0]
    alike = np.stack([found[0], found[1] * found[2], found[3]])
    groups = {
        "ep": mesh_groups(found, 0),
        "efsdp": mesh_groups(found, 1),
        "expert-dp": mesh_groups(alike, 1),
    }
    return {name: {*map(tuple, rows.tolist())} for name, rows in groups.items()}


@pytest.mark.parametrize(
    "framework", ["megatron", "torchtitan", "deepspeed", "accelerate"]
)
def test_groups_are_those_of_the_framework(framework: str) -> None:
    compared = 0
    for case in CASES:
        degrees = case["degrees"]
        mesh = meshes_of(degrees)
        experts = expert_groups(mesh, degrees["ep"])
        for name, theirs in case["groups"].get(framework, {}).items():
            ours = (
                experts[name] if name in experts else placed_groups(mesh, SPANS[name])
            )
            assert ours == {tuple(sorted(their)) for their in theirs}, (degrees, name)
            compared += len(theirs) > 0
    assert compared >= 8


def test_both_orders_of_megatron_and_experts_are_recorded() -> None:
    assert len(CASES) == 20
    orders = [case["degrees"]["order"] for case in CASES]
    assert orders.count("tp-cp-ep-pp-dp") == 10
    splits = [case for case in CASES if case["degrees"]["ep"] > 1]
    assert splits
    both = [
        c for c in CASES if c["degrees"]["dp_shard"] > 1 < c["degrees"]["dp_replicate"]
    ]
    assert both
