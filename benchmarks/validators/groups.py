"""The groups of ranks that the frameworks' own builders make for some degrees."""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from torchtitan_on_cpu import be_a_device

Groups = dict[str, list[list[int]]]


def main() -> None:
    """Read degrees from stdin, and print the groups of each framework."""
    be_a_device()
    cases = json.load(sys.stdin)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        found = [of(case) for case in cases]
    print(json.dumps(found))


def of(case: dict[str, Any]) -> dict[str, Groups]:
    """Return the groups of each framework that can have the degrees."""
    found = {"megatron": _of_megatron(case)}
    if case["order"] == "tp-cp-ep-dp-pp":
        found["torchtitan"] = _of_torchtitan(case)
        if case["cp"] == 1:
            found["deepspeed"] = _of_deepspeed(case)
        if case["pp"] == 1:
            found["accelerate"] = _of_accelerate(case)
    return found


def _of_megatron(case: dict[str, Any]) -> Groups:
    from megatron.core.parallel_state import RankGenerator

    tp, cp, ep, pp = (case[name] for name in ("tp", "cp", "ep", "pp"))
    dp, order = case["dp_shard"] * case["dp_replicate"], case["order"]
    dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
    groups = {name: dense.get_ranks(name) for name in ("tp", "cp", "dp", "pp")}
    groups["dp-cp"] = dense.get_ranks("dp-cp")
    if ep > 1:
        left = tp * cp * dp // ep
        experts = RankGenerator(tp=1, ep=ep, dp=left, pp=pp, cp=1, order=order)
        groups |= {"ep": experts.get_ranks("ep"), "expert-dp": experts.get_ranks("dp")}
    return groups


def _of_torchtitan(case: dict[str, Any]) -> Groups:
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed.parallel_dims import ParallelDims

    names = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")
    degrees = {name: case[name] for name in names}
    world = int(np.prod([case[name] for name in names[:-1]]))
    torch.distributed.init_process_group(
        "fake", rank=0, world_size=world, store=FakeStore()
    )
    dims = ParallelDims(**degrees, world_size=world)
    dims.build_mesh()
    kinds = {"dense": ("dp_replicate", "dp_shard", "cp", "tp", "pp")}
    kinds |= {"sparse": ("efsdp", "ep")} if case["ep"] > 1 else {}
    groups: Groups = {}
    for kind, axes in kinds.items():
        mesh = dims._global_meshes[kind]
        order = mesh.mesh_dim_names
        ranks = mesh.mesh.numpy()
        groups |= {axis: _along(ranks, order.index(axis)) for axis in axes}
    torch.distributed.destroy_process_group()
    return groups


def _of_deepspeed(case: dict[str, Any]) -> Groups:
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    dp = case["dp_shard"] * case["dp_replicate"]
    pipe_model_data_parallel_topology = PipeModelDataParallelTopology(
        num_pp=case["pp"], num_mp=case["tp"], num_dp=dp
    )
    axes = {"tp": "model", "dp": "data", "pp": "pipe"}
    return {
        name: pipe_model_data_parallel_topology.get_axis_comm_lists(axis)
        for name, axis in axes.items()
    }


def _of_accelerate(case: dict[str, Any]) -> Groups:
    from accelerate.parallelism_config import ParallelismConfig

    names = ("dp_replicate", "dp_shard", "cp", "tp")
    if case["tp"] * case["cp"] > 1 and case["dp_shard"] == 1 < case["dp_replicate"]:
        return {}  # ParallelismConfig refuses it
    parallelism_config = ParallelismConfig(
        **{f"{name}_size": case[name] for name in names}
    )
    found = parallelism_config._get_mesh()
    if not found:
        return {}
    axes, shape = found
    ranks = np.arange(np.prod(shape)).reshape(shape)
    return {axis: _along(ranks, place) for place, axis in enumerate(axes)}


def _along(ranks: Any, axis: int) -> list[list[int]]:
    """Return the groups of an axis, a row each."""
    groups: list[list[int]] = (
        np.moveaxis(ranks, axis, -1).reshape(-1, ranks.shape[axis]).tolist()
    )
    return groups


if __name__ == "__main__":
    main()
