"""Trains three steps of an exported torchtitan module on CPU; torchrun starts it.

The words are those of `torchtitan.train`. Of the module's configuration only data,
tokenizer, number of steps and CUDA graphs are replaced. FlexAttention has no backward
on CPU: PyTorch's own attention stands in for its kernel, under the causal mask. Gloo
cannot scale while it sums, so FSDP divides gradients before.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

STEPS = 3


def main() -> None:
    """Train, and let rank 0 print losses and what the ranks were split into."""
    _be_a_device(torch.cpu)
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args(sys.argv[1:])
    _replace_kernel()
    config = dataclasses.replace(
        config,
        training=dataclasses.replace(
            config.training, steps=STEPS, disable_cuda_graphs=True
        ),
        dataloader=_made_up_data(),
        tokenizer=_no_tokenizer(),
        metrics=dataclasses.replace(config.metrics, log_freq=1),
    )
    trainer = config.build()
    _sum_plainly(trainer.model_parts)
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
        "losses": losses,
        "degrees": {a: mesh.size() if mesh else 1 for a, mesh in meshes.items()},
        "tokens": trainer.ntokens_seen,
        "layers": sum(len(part.layers) for part in trainer.model_parts),
        "parameters": sum(p.numel() for p in held),
        "local_parameters": sum(_local(p).numel() for p in held),
    }


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _be_a_device(module: Any) -> None:
    """Let torch.cpu answer what torchtitan asks of a device; hide all others."""
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"
    module.get_device_name = lambda *_: "CPU"
    module.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1)
    module.current_device = lambda: 0
    for name in ("reset_peak_memory_stats", "empty_cache"):
        setattr(module, name, lambda: None)
    module.memory_stats = lambda *_: {}


def _replace_kernel() -> None:
    from torchtitan.models.common.attention import FlexAttention

    def attend(q: Any, k: Any, v: Any, **given: Any) -> tuple[Any, Any]:
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=given["scale"], enable_gqa=True
        )
        return out, types.SimpleNamespace(lse=None)

    FlexAttention.compiled_flex_attn = staticmethod(attend)


def _sum_plainly(parts: list[Any]) -> None:
    from torch.distributed.fsdp import FSDPModule

    for part in parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


def _made_up_data() -> Any:
    from torchtitan.components.dataloader import BaseDataLoader

    class MadeUp(BaseDataLoader):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, **given: Any) -> None:
            self.shape = given["local_batch_size"], given["seq_len"] + 1
            self.source = torch.Generator().manual_seed(given["dp_rank"])

        def __iter__(self) -> Iterator[Any]:
            while True:
                tokens = torch.randint(0, 16, self.shape, generator=self.source)
                places = torch.arange(self.shape[1] - 1).expand(self.shape[0], -1)
                inputs = {"input": tokens[:, :-1], "positions": places}
                yield inputs, tokens[:, 1:].contiguous()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, _state: dict[str, Any]) -> None:
            pass

    return MadeUp.Config()


def _no_tokenizer() -> Any:
    from torchtitan.components.tokenizer import BaseTokenizer

    class NoTokenizer(BaseTokenizer):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **_given: Any) -> None:
            super().__init__()

        def encode(self, *_: Any, **__: Any) -> list[int]:
            return []

        def decode(self, *_: Any, **__: Any) -> str:
            return ""

        def get_vocab_size(self) -> int:
            return 0

    return NoTokenizer.Config()


if __name__ == "__main__":
    main()
