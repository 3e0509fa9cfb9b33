"""DeepSpeed's own checks: its configuration, its experts, its pipeline."""

from __future__ import annotations

import types
from itertools import pairwise
from typing import Any

from common import Launch, expect, main, same


def prepare() -> None:
    """Import what takes long."""
    import deepspeed  # noqa: F401


def check(job: Launch) -> None:
    """Read the configuration as an engine of so many ranks does."""
    import deepspeed.comm.comm as communication
    import torch.distributed
    from deepspeed.runtime.config import DeepSpeedConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    words = job.program_words()
    config = words[words.index("--deepspeed_config") + 1]
    torch.distributed.init_process_group(
        "fake", rank=0, world_size=job.gpus, store=FakeStore()
    )
    communication.cdb = types.SimpleNamespace(
        get_rank=lambda *_a, **_k: 0,
        get_world_size=lambda *_a, **_k: job.gpus,
        is_initialized=lambda: True,
    )
    replicas = job.facts["data_parallel"]
    topology = types.SimpleNamespace(get_data_parallel_world_size=lambda: replicas)
    read = DeepSpeedConfig(config, mpu=topology)
    _compare(job, read)
    _check_experts(job, read)
    _check_stages(job, read)


def _compare(job: Launch, read: Any) -> None:
    plan = job.facts["plan"]
    same("micro-batch", read.train_micro_batch_size_per_gpu, plan["micro_batch"])
    same("micro-batches", read.gradient_accumulation_steps, plan["microbatches"])
    same("batch", read.train_batch_size, job.facts["global_batch"])
    zero = read.zero_config
    expect(int(zero.stage) >= plan["zero"], f"stage {zero.stage}")
    is_offloaded = zero.offload_optimizer is not None
    same("offload", is_offloaded, plan["offload"] != "none")
    if plan["tp"] > 1 and plan["pp"] == 1:
        same("tp", read.tensor_parallel_config.autotp_size, plan["tp"])


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
        1,
        zero_stage=int(zero.stage),
        zero_offload_optimizer=zero.offload_optimizer is not None,
        zero_offload_param=zero.offload_param is not None,
    )


def _check_stages(job: Launch, read: Any) -> None:
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
    from deepspeed.runtime.utils import partition_balanced

    plan = job.facts["plan"]
    if plan["pp"] == 1:
        return
    expect(int(read.zero_config.stage) < 2, "ZeRO-2 and -3 beside a pipeline")
    topology = PipeModelDataParallelTopology(
        num_pp=plan["pp"], num_mp=plan["tp"], num_dp=job.facts["data_parallel"]
    )
    same("ranks", topology.world_size(), job.gpus)
    weights = [0] + [1] * job.facts["n_layers"] + [0, 0]
    parts = partition_balanced(weights=weights, num_parts=plan["pp"])
    layers = [sum(weights[a:b]) for a, b in pairwise(parts)]
    same("layers of stages", layers, [own["layers"] for own in plan["stages"]])


if __name__ == "__main__":
    main(check, prepare)
