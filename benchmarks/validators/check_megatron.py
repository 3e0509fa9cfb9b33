"""Megatron-LM's own checks: arguments, TransformerConfig, number of micro-batches."""

from __future__ import annotations

import os
import sys
from itertools import chain
from typing import Any

from common import Launch, expect, main, same

NOT_HERE = ["--no-rope-fusion", "--no-gradient-accumulation-fusion"]
"""What needs Transformer Engine or Apex, which do not install without a GPU."""


def prepare() -> None:
    """Import what takes long."""
    import megatron.training.arguments  # noqa: F401


def check(job: Launch) -> None:
    """Run the checks that a start of `pretrain_gpt.py` runs, up to the model."""
    import megatron.core.num_microbatches_calculator as calculator
    import megatron.training.arguments as arguments
    import torch

    capability = (job.facts["capability"], 0)
    torch.cuda.get_device_capability = lambda *_a, **_k: capability
    arguments.get_device_arch_version = lambda: capability[0]
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(job.gpus), "LOCAL_RANK": "0"}
    sys.argv = [*job.program_words(), *NOT_HERE]
    args = arguments.validate_args(arguments.parse_args(), {})
    config = arguments.core_transformer_config_from_args(args)
    calculator.init_num_microbatches_calculator(
        0,
        args.rampup_batch_size,
        args.global_batch_size,
        args.micro_batch_size,
        args.data_parallel_size,
    )
    _compare(job, args, config, calculator.get_num_microbatches())


def _compare(job: Launch, args: Any, config: Any, microbatches: int) -> None:
    plan = job.facts["plan"]
    same("micro-batches", microbatches, plan["microbatches"])
    same("data-parallel", args.data_parallel_size, job.facts["data_parallel"])
    same("virtual stages", args.virtual_pipeline_model_parallel_size or 1, plan["vpp"])
    same("ep", config.expert_model_parallel_size, plan["ep"])
    if plan["recompute"] != "none":
        same("recompute", config.recompute_granularity, plan["recompute"])
    else:
        same("recompute", config.recompute_granularity, None)
    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        own = [stage["layers"] for stage in plan["stages"]]
        chunks = (chain(*layout.layout[rank]) for rank in range(plan["pp"]))
        read = [sum(kind.name == "decoder" for kind in kinds) for kinds in chunks]
        same("layers of stages", read, own)
    groups = plan["ep"] * plan["pp"]
    expect(job.gpus % groups == 0, f"ep x pp {groups} does not divide {job.gpus} GPUs")


if __name__ == "__main__":
    main(check, prepare)
