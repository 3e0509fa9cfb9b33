"""Accelerate's own checks: its file, its launcher, its plugins."""

from __future__ import annotations

import os
import types
from typing import Any

from common import Launch, expect, llama_config, main, same


def prepare() -> None:
    """Import what takes long."""
    import accelerate.commands.launch  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401


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
    same("pp", 1, plan["pp"])
    same("sequence parallel", False, plan["sequence_parallel"])
    if args.use_fsdp:
        _check_sharding(job.gpus, plan)
        _split_sequences(job)
        if job.facts["starts"] and plan["tp"] > 1:
            _run_split_layer(job.facts)
    else:
        same("zero", 0, plan["zero"])
        same("replicas", job.gpus, plan["dp_replicate"])
        expect(plan["recompute"] != "selective", "the model recomputes whole layers")
        same("offload", "none", plan["offload"])
    steps = int(os.environ["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"])
    same("micro-batches", steps, plan["microbatches"])
    batch = steps * plan["micro_batch"] * job.facts["data_parallel"]
    same("batch", batch, job.facts["global_batch"])


def _check_sharding(gpus: int, plan: dict[str, Any]) -> None:
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    degrees = ParallelismConfig()
    started = types.SimpleNamespace(
        multi_device=True,
        num_processes=gpus,
        is_fsdp2=True,
        distributed_type=DistributedType.FSDP,
    )
    degrees._validate_accelerator(started)
    same("dp_shard", degrees.dp_shard_size, plan["dp_shard"])
    same("dp_replicate", degrees.dp_replicate_size, plan["dp_replicate"])
    same("tp", degrees.tp_size, plan["tp"])
    same("cp", degrees.cp_size, plan["cp"])
    plugin = FullyShardedDataParallelPlugin()
    same("version", plugin.fsdp_version, 2)
    read = {True: 3, False: 2}[plugin.reshard_after_forward]
    same("zero", read, plan["zero"])
    held = [stage["layers"] for stage in plan["stages"]]
    recomputed = held if plugin.activation_checkpointing else [0] * len(held)
    found = [stage["recompute_layers"] for stage in plan["stages"]]
    same("recomputed layers", recomputed, found)
    if plugin.activation_checkpointing:
        leaves = plugin.activation_checkpointing_offload
        same("recompute", "full-cpu" if leaves else "full", plan["recompute"])
    is_offloaded = bool(getattr(plugin.cpu_offload, "pin_memory", False))
    same("offload", "parameters" if is_offloaded else "none", plan["offload"])


def _split_sequences(job: Launch) -> None:
    """Split a sequence over its ranks, as `Accelerator.maybe_context_parallel` does."""
    import torch
    from torch.distributed.tensor.experimental import context_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ranks = job.facts["plan"]["cp"]
    if ranks == 1:
        return
    torch.distributed.init_process_group(
        "fake", rank=0, world_size=ranks, store=FakeStore()
    )
    mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
    tokens = torch.zeros(1, job.facts["seq_len"], dtype=torch.long)
    with context_parallel(mesh, buffers=[tokens], buffer_seq_dims=[1]):
        same("tokens of a rank", tokens.shape[1] * ranks, job.facts["seq_len"])


def _run_split_layer(facts: dict[str, Any]) -> None:
    """Run a layer of the first of the ranks over which `transformers` splits it."""
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import LlamaForCausalLM

    ranks = facts["plan"]["tp"]
    config = llama_config(facts, num_hidden_layers=1)
    LlamaForCausalLM(config).save_pretrained("whole")
    os.environ["WORLD_SIZE"] = str(ranks)
    if torch.distributed.is_initialized():  # for the ranks of a sequence
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group(
        "fake", rank=0, world_size=ranks, store=FakeStore()
    )
    model = LlamaForCausalLM.from_pretrained("whole", tp_plan="auto", tp_size=ranks)
    tokens = torch.zeros(1, 16, dtype=torch.long)
    model(tokens, labels=tokens).loss.backward()


if __name__ == "__main__":
    main(check, prepare)
