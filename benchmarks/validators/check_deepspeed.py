"""DeepSpeed's own checks: its configuration, its experts, its pipeline."""

from __future__ import annotations

import contextlib
import importlib
import types
from itertools import pairwise
from typing import Any

from common import Launch, expect, main, same


def prepare() -> None:
    """Import what takes long."""
    import deepspeed.runtime.sequence_parallel.ulysses_sp  # noqa: F401
    import transformers.modeling_utils  # noqa: F401

    # It compiles kernels that only messages between processes of a host would call. The
    # attribute of that name is PyTorch.
    backend: Any = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None


def check(job: Launch) -> None:
    """Read the configuration as `deepspeed.initialize` does, on one of the ranks."""
    import deepspeed.comm
    import torch.distributed
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.tensor_parallel.init_utils import load_ds_config
    from torch.testing._internal.distributed.fake_pg import FakeStore

    words = job.program_words()
    torch.distributed.init_process_group(
        "fake", rank=0, world_size=job.gpus, store=FakeStore()
    )
    deepspeed.comm.init_distributed(dist_backend="fake", dist_init_required=False)
    told = load_ds_config(words[words.index("--deepspeed_config") + 1])
    groups = _groups(job, told)
    read = DeepSpeedConfig(told, groups)
    _compare(job, read)
    same("cp", _ranks_of_a_sequence(read, groups), job.facts["plan"]["cp"])
    _check_experts(job, read)
    _check_stages(job, read)


def _groups(job: Launch, told: dict[str, Any]) -> Any:
    """Return the `mpu` that `deepspeed.initialize` gets, as the model's page says it.

    Ulysses makes it, or a pipeline does, which takes none from outside.
    """
    from deepspeed.runtime.pipe.topology import (
        PipelineParallelGrid,
        PipeModelDataParallelTopology,
    )

    plan, ranks = job.facts["plan"], told.get("sequence_parallel_size", 1)
    if plan["pp"] == 1:
        return _ulysses(job, ranks) if ranks > 1 else None
    expect(ranks == 1, "mpu must be None with pipeline parallelism")
    topology = PipeModelDataParallelTopology(
        num_pp=plan["pp"], num_mp=plan["tp"], num_dp=job.facts["data_parallel"]
    )
    same("ranks", topology.world_size(), job.gpus)
    return PipelineParallelGrid(topology=topology)


def _ulysses(job: Launch, ranks: int) -> Any:
    """Return the groups of Ulysses, once it has split heads and a batch over them."""
    import torch
    from deepspeed.runtime.sequence_parallel.ulysses_sp import (
        UlyssesSPAttentionHF,
        UlyssesSPDataLoaderAdapter,
    )
    from transformers import LlamaConfig

    facts, micro_batch = job.facts, job.facts["plan"]["micro_batch"]
    config = LlamaConfig(
        hidden_size=facts["d_model"],
        num_attention_heads=facts["n_heads"],
        num_key_value_heads=facts["n_kv_heads"],
        head_dim=facts["d_model"] // facts["n_heads"],
    )
    groups = UlyssesSPAttentionHF.register_with_transformers(
        types.SimpleNamespace(config=config), "sdpa", ranks, micro_batch
    )
    names = ("input_ids", "position_ids", "labels")
    batch = {name: torch.zeros(micro_batch, facts["seq_len"]).long() for name in names}
    group = groups.get_sequence_parallel_group()
    next(UlyssesSPDataLoaderAdapter([batch], 0, group, ranks, "cpu"))
    return groups


def _ranks_of_a_sequence(read: Any, groups: Any) -> int:
    """Return the ranks that share a sequence, once the engine has made its groups."""
    from deepspeed.utils import groups as of_engine

    of_engine.mpu = groups
    if read.tensor_parallel_config.autotp_size > 1:
        of_engine.mpu = of_engine  # DeepSpeedEngine._configure_tensor_parallel_states
        of_engine._init_tp_mesh_device(read.tensor_parallel_config.autotp_size)
    return int(of_engine._get_sequence_parallel_world_size())


def _compare(job: Launch, read: Any) -> None:
    plan = job.facts["plan"]
    same("micro-batch", read.train_micro_batch_size_per_gpu, plan["micro_batch"])
    same("micro-batches", read.gradient_accumulation_steps, plan["microbatches"])
    # Where the file leaves the batch open, DeepSpeed counts the ranks of AutoTP too.
    copies = plan["tp"] if plan["pp"] == 1 else 1
    same("batch", read.train_batch_size, copies * job.facts["global_batch"])
    same("offload", _offload(read.zero_config, plan), plan["offload"])
    same("zero", _zero(job, read), plan["zero"])
    same("shards", job.facts["data_parallel"], plan["dp_shard"] * plan["dp_replicate"])
    same(
        "replicas of shards",
        1 if plan["zero"] else plan["dp_replicate"],
        plan["dp_replicate"],
    )
    same("sequence parallel", False, plan["sequence_parallel"])
    layers = [stage["layers"] for stage in plan["stages"]]
    found = [stage["recompute_layers"] for stage in plan["stages"]]
    same("recomputed layers", layers if any(found) else found, found)
    if any(found):
        leaves = read.activation_checkpointing_config.cpu_checkpointing
        same("recompute", "full-cpu" if leaves else "full", plan["recompute"])
    if plan["tp"] > 1 and plan["pp"] == 1:
        same("tp", read.tensor_parallel_config.autotp_size, plan["tp"])


def _zero(job: Launch, read: Any) -> int:
    """Return the ZeRO stage; one GPU shards nothing until it gathers."""
    stage, meant = int(read.zero_config.stage), int(job.facts["plan"]["zero"])
    is_alone = job.facts["data_parallel"] * job.facts["plan"]["cp"] == 1
    return meant if is_alone and meant <= stage else stage


def _offload(zero: Any, plan: dict[str, Any]) -> str:
    """Return what is offloaded: the optimizer from stage 1 on, and parameters at 3.

    From stage 2 on gradients go with the optimizer; other stages do not read the keys
    (runtime/engine.py, `_configure_zero_optimizer`).
    """
    stage = int(zero.stage)
    if zero.offload_param is not None and stage == 3:
        return "parameters"
    if zero.offload_optimizer is None or stage == 0:
        return "none"
    has_gradients = stage >= 2 and plan["offload"] == "gradients"
    return "gradients" if has_gradients else "optimizer"


def _check_experts(job: Launch, read: Any) -> None:
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config

    plan, experts = job.facts["plan"], read.expert_parallel_config
    if experts is None:
        return
    same("ep", experts.autoep_size, plan["ep"])
    zero = read.zero_config
    validate_autoep_config(
        experts,
        job.gpus,
        plan["pp"],
        plan["tp"],
        plan["cp"],
        zero_stage=int(zero.stage),
        zero_offload_optimizer=zero.offload_optimizer is not None,
        zero_offload_param=zero.offload_param is not None,
    )


def _check_stages(job: Launch, read: Any) -> None:
    from deepspeed.runtime.utils import partition_balanced

    plan = job.facts["plan"]
    if plan["pp"] == 1:
        return
    _enter_engine(int(read.zero_config.stage))
    same("vpp", 1, plan["vpp"])
    same("schedule", "1f1b", plan["schedule"])
    weights = [0] + [1] * job.facts["n_layers"] + [0, 0]
    parts = partition_balanced(weights=weights, num_parts=plan["pp"])
    layers = [sum(weights[a:b]) for a, b in pairwise(parts)]
    same("layers of stages", layers, [one["layers"] for one in plan["stages"]])


def _enter_engine(stage: int) -> None:
    """Run what the engine of a pipeline checks before it makes anything."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.pipe.module import PipelineModule

    class Started(PipelineEngine):  # type: ignore[misc]
        module = PipelineModule.__new__(PipelineModule)

        def zero_optimization_stage(self) -> int:
            return stage

        def __setattr__(self, *_: Any) -> None:
            raise _PassedError

    DeepSpeedEngine.__init__ = lambda *_: None
    with contextlib.suppress(_PassedError):
        Started()


class _PassedError(Exception):
    """The checks of the engine are behind it."""


if __name__ == "__main__":
    main(check, prepare)
