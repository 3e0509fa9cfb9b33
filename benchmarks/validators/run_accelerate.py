"""Trains three steps of an exported `train.py` under Accelerate on CPU.

torchrun starts it with the words behind `accelerate launch`, whose own parser reads the
file and sets the variables. Gloo and the CPU stand in for NCCL and a GPU.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from common import local_part, run_program
from torchtitan_on_cpu import sum_plainly

STARTED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun has said already."""


LOSSES: list[float] = []
"""What the program prints of each step."""


class _Replica(torch.nn.parallel.DistributedDataParallel):
    """A replica on the CPU, which has no number."""

    def __init__(self, model: Any, device_ids: Any, output_device: Any) -> None:
        del device_ids, output_device
        super().__init__(model)


def main() -> None:
    """Train, and let each rank print what it holds."""
    from accelerate.commands.launch import (
        _validate_launch_command,
        launch_command_parser,
    )
    from accelerate.utils.launch import prepare_multi_gpu_env

    started = {name: os.environ[name] for name in STARTED}
    args, *_ = _validate_launch_command(
        launch_command_parser().parse_args(sys.argv[1:])
    )
    os.environ |= prepare_multi_gpu_env(args) | started
    be_a_gpu()
    facts = json.loads(os.environ["FACTS"])
    held = run_program(facts)
    print("RAN " + json.dumps(_report(held, facts)), flush=True)
    torch.distributed.destroy_process_group()


def be_a_gpu() -> None:
    """Let Accelerate take the CPU for a GPU, and keep the losses that it prints."""
    import accelerate.accelerator as module
    from accelerate.state import DistributedType, PartialState

    gpus = "gloo", DistributedType.MULTI_GPU
    PartialState._prepare_backend = lambda *_given, **_named: gpus
    PartialState.set_device = lambda this: vars(this).update(device=torch.device("cpu"))
    module.is_bf16_available = lambda *_: True
    prepare = module.Accelerator.prepare

    def prepared(this: Any, *given: Any) -> Any:
        found = prepare(this, *given)
        sum_plainly([found[0]])
        return found

    module.Accelerator.prepare = prepared
    module.Accelerator.print = lambda _own, line: LOSSES.append(float(line.split()[-1]))
    module.Accelerator.end_training = lambda *_: None  # ranks report first
    torch.nn.parallel.DistributedDataParallel = _Replica


def _report(held: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    accelerator, model = held["accelerator"], held["model"]
    degrees, plugin = (
        accelerator.parallelism_config,
        getattr(accelerator.state, "fsdp_plugin", None),
    )
    axes = ("dp_replicate", "dp_shard", "tp", "cp")
    ranks = torch.distributed.get_world_size()
    weights = [*model.parameters()]
    return {
        "rank": torch.distributed.get_rank(),
        "backend": torch.distributed.get_backend(),
        "steps": held["step"],
        "losses": LOSSES,
        "degrees": {a: getattr(degrees, f"{a}_size") for a in axes}
        if plugin
        else {"dp_replicate": ranks},
        "zero": {True: 3, False: 2}[plugin.reshard_after_forward] if plugin else 0,
        "layers": len(accelerator.unwrap_model(model).model.layers),
        "parameters": sum(p.numel() for p in weights),
        "local_parameters": sum(local_part(p).numel() for p in weights),
    }


if __name__ == "__main__":
    main()
