"""What torchtitan needs to run on CPU: a device, a kernel, sums, data, no tokenizer.

FlexAttention has no backward on CPU: PyTorch's own attention stands in for its kernel,
under the causal mask. Gloo cannot scale while it sums: FSDP divides gradients before.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import torch


def small_job(config: Any, steps: int) -> Any:
    """Return a configuration with made-up data, few steps, and no CUDA graphs."""
    return dataclasses.replace(
        config,
        training=dataclasses.replace(
            config.training, steps=steps, disable_cuda_graphs=True
        ),
        dataloader=_made_up_data(),
        tokenizer=_no_tokenizer(),
        metrics=dataclasses.replace(config.metrics, log_freq=1),
        debug=dataclasses.replace(config.debug, seed=1),
    )


def be_a_device() -> None:
    """Let torch.cpu answer what torchtitan asks of a device; before its import."""
    import torch._utils

    module: Any = torch.cpu
    torch._utils._get_available_device_type = lambda: "cpu"
    module.get_device_name = lambda *_: "CPU"
    module.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1)
    module.current_device = lambda: 0
    for name in ("reset_peak_memory_stats", "empty_cache"):
        setattr(module, name, lambda: None)
    module.memory_stats = lambda *_: {}


def replace_kernel() -> None:
    """Let PyTorch's attention stand in for FlexAttention's kernel."""
    from torchtitan.models.common.attention import FlexAttention

    def attend(q: Any, k: Any, v: Any, **given: Any) -> tuple[Any, Any]:
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=given["scale"], enable_gqa=True
        )
        return out, types.SimpleNamespace(lse=None)

    FlexAttention.compiled_flex_attn = staticmethod(attend)


def sum_plainly(parts: list[Any]) -> None:
    """Let FSDP divide gradients before it sums them."""
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
            tokens = torch.randint(0, 16, self.shape, generator=self.source)
            while True:  # the same, of which a step at a small rate learns
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
