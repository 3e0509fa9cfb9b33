"""Accelerate's own checks: its file, its launcher, its plugins."""

from __future__ import annotations

import os
from typing import Any

from common import Launch, main, same


def prepare() -> None:
    """Import what takes long."""
    import accelerate.commands.launch  # noqa: F401


def check(job: Launch) -> None:
    """Read the file as `accelerate launch` does, and build what the script would."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import (
        _validate_launch_command,
        launch_command_parser,
    )
    from accelerate.utils.launch import prepare_multi_gpu_env

    words = job.words[2:]
    load_config_from_file(words[words.index("--config_file") + 1])
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    same("processes", args.num_processes, job.gpus)
    os.environ |= prepare_multi_gpu_env(args)
    plan = job.facts["plan"]
    same("FSDP", bool(args.use_fsdp), plan["zero"] >= 2)
    if plan["zero"] >= 2:
        _check_sharding(job.gpus, plan)
    steps = int(os.environ["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"])
    same("micro-batches", steps, plan["microbatches"])
    batch = steps * plan["micro_batch"] * job.facts["data_parallel"]
    same("batch", batch, job.facts["global_batch"])


def _check_sharding(gpus: int, plan: dict[str, Any]) -> None:
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    degrees = ParallelismConfig()
    same("ranks", degrees.total_size, gpus)
    same("dp_shard", degrees.dp_shard_size, plan["dp_shard"])
    same("dp_replicate", degrees.dp_replicate_size, plan["dp_replicate"])
    plugin = FullyShardedDataParallelPlugin()
    same("version", plugin.fsdp_version, 2)
    same("reshard", plugin.reshard_after_forward, plan["zero"] == 3)
    same("recompute", plugin.activation_checkpointing, plan["recompute"] == "full")
    is_offloaded = bool(getattr(plugin.cpu_offload, "pin_memory", False))
    same("offload", is_offloaded, plan["offload"] == "parameters")


if __name__ == "__main__":
    main(check, prepare)
