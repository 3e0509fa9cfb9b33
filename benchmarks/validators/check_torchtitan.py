"""torchtitan's own checks: its configuration, its meshes, its pipeline's stages."""

from __future__ import annotations

import os
import sys
from typing import Any

from common import Launch, expect, main, same
from torchtitan_on_cpu import be_a_device, small_job


def prepare() -> None:
    """Import what takes long."""
    be_a_device()
    import torchtitan.trainer  # noqa: F401


def check(job: Launch) -> None:
    """Read the module as torchtitan does, build its meshes and check its stages."""
    import torch.distributed
    import torchtitan.distributed.parallel_dims as dims
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.config import ConfigManager

    words = job.program_words()
    sys.path.insert(0, str(job.folder))
    config = ConfigManager().parse_args(words[words.index("--module") :])
    torch.distributed.init_process_group(
        "fake", rank=0, world_size=job.gpus, store=FakeStore()
    )
    parallel = dims.ParallelDims.from_config(config.parallelism, job.gpus)
    parallel.build_mesh()
    config.model_spec.model.update_from_config(config=config)
    config._validate_cuda_graphs()
    _compare(job, config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    _compare_weights(model, job.facts["parameters"])
    _check_stages(job, config, parallel)
    # Without a GPU, what is offloaded cannot be kept in pinned memory.
    if job.facts["starts"] and not config.training.enable_cpu_offload:
        _start(config)


def _start(config: Any) -> None:
    """Build the trainer of the first rank: model, meshes, shards, stages, optimizer."""
    os.environ["LOCAL_RANK"] = "0"
    small_job(config, steps=1).build()


def _compare_weights(model: Any, meant: int) -> None:
    """Compare parameters; what balances experts is none here, and in all models."""
    held = sum(parameter.numel() for parameter in model.parameters())
    named = model.named_buffers()
    biases = sum(one.numel() for name, one in named if "expert_bias" in name)
    if meant != held + biases:
        same("parameters", held, meant)


def _compare(job: Launch, config: Any) -> None:
    plan, training = job.facts["plan"], config.training
    same("layers", len(config.model_spec.model.layers), job.facts["n_layers"])
    same("model", config.model_spec.model.dim, job.facts["d_model"])
    same("vocabulary", config.model_spec.model.vocab_size, job.facts["vocab"])
    words = {"none": "NoneType", "selective": "SelectiveAC", "full": "FullAC"}
    policy = type(config.activation_checkpoint).__qualname__.split(".")[0]
    same("recompute", policy, words[plan["recompute"]])
    held = [stage["layers"] for stage in plan["stages"]]
    recomputed = [0] * len(held) if policy == "NoneType" else held
    found = [stage["recompute_layers"] for stage in plan["stages"]]
    same("recomputed layers", recomputed, found)
    same("zero", _zero(config.parallelism), plan["zero"])
    offload = "parameters" if training.enable_cpu_offload else "none"
    same("offload", offload, plan["offload"])
    is_split = config.parallelism.enable_sequence_parallel and plan["tp"] > 1
    same("sequence parallel", is_split, plan["sequence_parallel"])
    replicas = job.facts["data_parallel"]
    per_pass = training.local_batch_size * replicas
    expect(training.global_batch_size % per_pass == 0, "batch is not of whole passes")
    passes = training.global_batch_size // per_pass
    expect(plan["pp"] == 1 or passes == 1, f"{passes} pipelines a step")
    divisor = plan["tp"] * (2 * plan["cp"] if plan["cp"] > 1 else 1)
    expect(training.seq_len % divisor == 0, "sequence: Trainer.__init__")


def _zero(read: Any) -> int:
    """Return the ZeRO stage; where there is nothing to shard over, it is none."""
    if read.data_parallel_shard_degree * read.context_parallel_degree == 1:
        return 0
    return {"never": 2, "always": 3}[read.fsdp_reshard_after_forward]


def _check_stages(job: Launch, config: Any, parallel: Any) -> None:
    """Build the schedule over stages that hold no weights."""
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import (
        PipelineScheduleMulti,
        get_schedule_class,
    )
    from torchtitan.distributed.pipeline_parallel import _build_pipeline_schedule

    plan, found = job.facts["plan"], config.parallelism
    if plan["pp"] == 1:
        return
    parts = found.module_fqns_per_model_part
    same("stages", len(parts), plan["pp"] * plan["vpp"])
    names = [name for part in parts for name in part]
    layers = [f"layers.{i}" for i in range(job.facts["n_layers"])]
    same("modules", names, ["tok_embeddings", *layers, "norm", "lm_head"])
    is_multi = issubclass(
        get_schedule_class(found.pipeline_parallel_schedule), PipelineScheduleMulti
    )
    expect(is_multi or plan["vpp"] == 1, "one stage a rank")
    group = parallel.get_mesh("pp").get_group()
    stages = [
        PipelineStage(
            torch.nn.Identity(),
            chunk * plan["pp"],
            len(parts),
            torch.device("cpu"),
            group=group,
        )
        for chunk in range(plan["vpp"])
    ]
    schedule = _build_pipeline_schedule(
        parallelism=found,
        local_batch_size=config.training.local_batch_size,
        stages=stages,
        loss_fn=lambda *_: (None, None),
    )
    same("micro-batches", schedule._n_microbatches, plan["microbatches"])


if __name__ == "__main__":
    main(check, prepare)
