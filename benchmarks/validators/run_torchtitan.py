"""Trains three steps of an exported torchtitan module on CPU; torchrun starts it.

The words are those of `torchtitan.train`. Of the module's configuration only data,
tokenizer, number of steps and CUDA graphs are replaced; see `torchtitan_on_cpu`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from common import local_part
from torchtitan_on_cpu import be_a_device, replace_kernel, small_job, sum_plainly

STEPS = 3


def main() -> None:
    """Train, and let rank 0 print losses and what the ranks were split into."""
    be_a_device()
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args(sys.argv[1:])
    replace_kernel()
    config = small_job(config, STEPS)
    trainer = config.build()
    sum_plainly(trainer.model_parts)
    losses: list[float] = []
    log = trainer.metrics_processor.log

    def noted(step: int, loss: float, *more: Any, **others: Any) -> None:
        losses.append(loss)
        log(step, loss, *more, **others)

    trainer.metrics_processor.log = noted
    trainer.train()
    print("RAN " + json.dumps(_report(trainer, losses)), flush=True)
    trainer.close()
    torch.distributed.destroy_process_group()


def _report(trainer: Any, losses: list[float]) -> dict[str, Any]:
    """Return the degrees of the trainer's meshes, and what this rank holds."""
    dims = trainer.parallel_dims
    axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
    meshes = {axis: dims.get_optional_mesh(axis) for axis in axes}
    held = [p for part in trainer.model_parts for p in part.parameters()]
    return {
        "rank": torch.distributed.get_rank(),
        "backend": torch.distributed.get_backend(),
        "steps": trainer.step,
        "losses": _of_last_stage(losses, meshes["pp"]),
        "degrees": {a: mesh.size() if mesh else 1 for a, mesh in meshes.items()},
        "tokens": trainer.ntokens_seen,
        "layers": sum(len(part.layers) for part in trainer.model_parts),
        "parameters": sum(p.numel() for p in held),
        "local_parameters": sum(local_part(p).numel() for p in held),
    }


def _of_last_stage(losses: list[float], stages: Any) -> list[float]:
    """Return the losses of the last stage: the others log -1."""
    if stages is None:
        return losses
    found = torch.tensor(losses)
    most = torch.distributed.ReduceOp.MAX
    torch.distributed.all_reduce(found, most, stages.get_group())
    return [float(loss) for loss in found]


if __name__ == "__main__":
    main()
