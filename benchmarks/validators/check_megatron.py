"""Megatron-LM's own checks: arguments, configuration, micro-batches, data sets."""

from __future__ import annotations

import dataclasses
import os
import sys
from itertools import chain
from typing import Any

from common import Launch, expect, main, same
from megatron_on_cpu import (
    mark_overrides,
    stand_in_for_kernels,
    whole_parameters,
    zero_stage,
)
from start_megatron import build, start

NOT_HERE = ["--no-rope-fusion", "--no-gradient-accumulation-fusion"]
"""What needs Transformer Engine or Apex, which do not install without a GPU."""


def prepare() -> None:
    """Import what takes long."""
    mark_overrides()
    import megatron.training.arguments
    import megatron.training.training  # noqa: F401

    stand_in_for_kernels()


def check(job: Launch) -> None:
    """Run what a start of `pretrain_gpt.py` runs up to the model, and its data."""
    import megatron.core.num_microbatches_calculator as calculator
    import megatron.training.arguments as arguments
    import torch
    from megatron.core.optimizer.optimizer_config import OptimizerConfig

    capability = (job.facts["capability"], 0)
    torch.cuda.get_device_capability = lambda *_a, **_k: capability
    arguments.get_device_arch_version = lambda: capability[0]
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(job.gpus), "LOCAL_RANK": "0"}
    sys.argv = [*job.program_words(), *NOT_HERE]
    args = arguments.validate_args(arguments.parse_args(), {})
    config = arguments.core_transformer_config_from_args(args)
    names = {field.name for field in dataclasses.fields(OptimizerConfig)}
    OptimizerConfig(**{name: one for name, one in vars(args).items() if name in names})
    calculator.init_num_microbatches_calculator(
        0,
        args.rampup_batch_size,
        args.global_batch_size,
        args.micro_batch_size,
        args.data_parallel_size,
    )
    microbatches = calculator.get_num_microbatches()
    plan = job.facts["plan"]
    _compare(job, args, config, microbatches)
    _build_data(job, args)
    model = build(job, args, config)
    if plan["pp"] == 1:  # otherwise the first rank has a part of the layers
        padding = model.vocab_size - job.facts["vocab"]
        tables = 1 if model.share_embeddings_and_output_weights else 2
        more = tables * padding * job.facts["d_model"]
        same("parameters", whole_parameters(model), job.facts["parameters"] + more)
    if job.facts["starts"]:
        start(args, model, microbatches)


def _compare(job: Launch, args: Any, config: Any, microbatches: int) -> None:
    plan = job.facts["plan"]
    same("micro-batches", microbatches, plan["microbatches"])
    same("data-parallel", args.data_parallel_size, job.facts["data_parallel"])
    same("virtual stages", args.virtual_pipeline_model_parallel_size or 1, plan["vpp"])
    same("ep", config.expert_model_parallel_size, plan["ep"])
    same("recompute", config.recompute_granularity or "none", plan["recompute"])
    stages = [stage["recompute_layers"] for stage in plan["stages"]]
    same("recomputed layers", _recomputed(config, plan), stages)
    same("zero", _zero(args, plan), plan["zero"])
    offload = "optimizer" if args.optimizer_cpu_offload else "none"
    same("offload", offload, plan["offload"])
    same("sequence parallel", config.sequence_parallel, plan["sequence_parallel"])
    if plan["pp"] > 1:
        same("schedule", _schedule(args), plan["schedule"])
    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        found = [stage["layers"] for stage in plan["stages"]]
        chunks = (chain(*layout.layout[rank]) for rank in range(plan["pp"]))
        read = [sum(kind.name == "decoder" for kind in kinds) for kinds in chunks]
        same("layers of stages", read, found)
    groups = plan["ep"] * plan["pp"]
    expect(job.gpus % groups == 0, f"ep x pp {groups} does not divide {job.gpus} GPUs")


def _build_data(job: Launch, args: Any) -> None:
    """Count the samples of each data set, and take one of the made-up ones.

    Megatron-LM's `pretrain_gpt.py` is in no package; this is what its provider does.
    """
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    from megatron.training import global_vars, training

    global_vars.set_args(args)
    samples = training.get_train_valid_test_num_samples()
    wanted = args.train_iters * job.facts["global_batch"]
    same("samples", list(samples), [wanted, 0, 0])
    tokenizer = build_tokenizer(args)
    same("vocabulary", args.vocab_size, job.facts["vocab"])
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        split=args.split or "1",
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        tokenizer=tokenizer,
    )
    asked = torch.distributed.is_initialized
    torch.distributed.is_initialized = lambda: False
    builder = BlendedMegatronDatasetBuilder(
        MockGPTDataset, [1, None, None], lambda: True, config
    )
    train, _, _ = builder.build()
    torch.distributed.is_initialized = asked
    same("tokens", len(train[0]["tokens"]), job.facts["seq_len"])


def _recomputed(config: Any, plan: dict[str, Any]) -> list[int]:
    """Return the layers of each stage that are recomputed, all of it or modules."""
    layers = [stage["layers"] for stage in plan["stages"]]
    if config.recompute_granularity is None:
        return [0] * len(layers)
    if config.recompute_method == "block":
        count = config.recompute_num_layers
        return [plan["vpp"] * min(count, layer // plan["vpp"]) for layer in layers]
    return layers


def _zero(args: Any, plan: dict[str, Any]) -> int:
    """Return the ZeRO stage; a single rank has nothing to shard over."""
    ranks = args.data_parallel_size * args.context_parallel_size
    if ranks == 1 and plan["zero"] <= 1 and not args.use_megatron_fsdp:
        return int(plan["zero"])
    return zero_stage(args)


def _schedule(args: Any) -> str:
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    function = get_forward_backward_func(
        args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size
    )
    names = {
        "forward_backward_pipelining_with_interleaving": "1f1b",
        "forward_backward_pipelining_without_interleaving": "1f1b",
    }
    return names[function.__name__]


if __name__ == "__main__":
    main(check, prepare)
