"""What Megatron Core needs to run on CPU, or to be built on the meta device.

The CPU answers what is asked of a GPU. PyTorch's norm and Megatron's local attention
stand in for Transformer Engine's, and others' kernels are never called.
"""

from __future__ import annotations

import sys
import typing
from contextlib import nullcontext
from copy import copy
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def mark_overrides() -> None:
    """Let Python 3.11 have the one name of 3.12 that Megatron Core imports, a mark."""
    if sys.version_info < (3, 12):
        typing.override = lambda function: function


FUSED = (
    "fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index",
    "fused_sort_chunks_by_index_with_probs", "fused_unpermute",
)  # fmt: skip


def stand_in_for_kernels() -> None:
    """Let Megatron Core find the kernels that sort tokens, which need a GPU."""
    from megatron.core.transformer.moe import moe_utils

    for name in FUSED:
        setattr(moe_utils, name, getattr(moe_utils, name) or object())


class OnDevice(TorchFunctionMode):
    """Makes on a device what Megatron makes on a GPU, and calls its tensors a GPU's."""

    def __init__(self, device: str = "cpu") -> None:
        """Take the device: the CPU, or `meta`, which holds no weights."""
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Any, _types: Any, given: Any = (), named: Any = None
    ) -> Any:
        """Call a function of PyTorch with the device."""
        named = dict(named or {})
        named |= {"device": self.device} if "device" in named else {}
        named |= {"pin_memory": False} if "pin_memory" in named else {}
        given = [self.device if _is_gpu(one) else one for one in given]
        if function is torch.device:
            return function(self.device)
        if function is torch.Tensor.cuda:
            return given[0]
        found = function(*given, **named)
        is_asked = function is torch.Tensor.type and len(given) == 1 and not named
        return found.replace("torch.", "torch.cuda.") if is_asked else found


def _is_gpu(given: Any) -> bool:
    kinds = (str, torch.device)
    return isinstance(given, kinds) and str(given).startswith("cuda")


class _Stream:
    """A stream, or an event, of a device that has one of them."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_given, **_named: self


def be_a_gpu() -> None:
    """Answer what Megatron asks of CUDA; before its import."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.get_rng_state, cuda.set_rng_state = torch.get_rng_state, torch.set_rng_state
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.Stream = cuda.current_stream = cuda.Event = lambda *_, **__: _Stream()
    cuda.stream = lambda *_: nullcontext()
    cuda.synchronize = cuda.empty_cache = lambda *_: None
    torch.nn.Module.cuda = lambda self, *_: self  # type: ignore[method-assign]


def stand_in_for_norms() -> None:
    """Let PyTorch's norm stand in for Transformer Engine's, which splits sequences."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    WrappedTorchNorm.__new__ = _norm


def _norm(_class: Any, config: Any, hidden_size: int, **others: Any) -> Any:
    import torch

    norms = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}
    norm = norms[config.normalization](hidden_size, others.get("eps"))
    for weight in norm.parameters():  # of which ranks of a tensor sum gradients
        weight.sequence_parallel = config.sequence_parallel
    return norm


def zero_stage(args: Any) -> int:
    """Return the ZeRO stage that Megatron-LM's arguments say."""
    strategies = ("no_shard", "optim", "optim_grads", "optim_grads_params")
    if args.use_megatron_fsdp:
        return strategies.index(args.data_parallel_sharding_strategy)
    return int(args.use_distributed_optimizer)


def counts_of_tokens(tensor: Any, as_numpy: bool = False, **_given: Any) -> Any:
    """Return counts of tokens as the CPU's side of a copy gets them."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def split_attention() -> type:
    """Return PyTorch's attention of a rank's queries over the keys of all its peers.

    Megatron Core's local attention takes whole sequences alone.
    """
    from megatron.core import parallel_state
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from torch.distributed.nn.functional import all_gather

    class Gathered(DotProductAttention):  # type: ignore[misc]
        def __init__(self, config: Any, *given: Any, **named: Any) -> None:
            whole = copy(config)
            whole.context_parallel_size = 1
            super().__init__(whole, *given, **named)

        def forward(
            self, query: Any, key: Any, value: Any, *more: Any, **also: Any
        ) -> Any:
            group = parallel_state.get_context_parallel_group()
            key, value = (
                torch.cat(all_gather(one.contiguous(), group=group))
                for one in (key, value)
            )
            return super().forward(query, key, value, *more, **also)

    return Gathered


def whole_parameters(model: Any) -> int:
    """Return the parameters of all ranks that hold parts of the same layers."""
    from megatron.core import parallel_state as state

    tp = state.get_tensor_model_parallel_world_size()
    ep = state.get_expert_model_parallel_world_size()
    return sum(
        parameter.numel()
        * (tp if getattr(parameter, "tensor_model_parallel", False) else 1)
        * (1 if getattr(parameter, "allreduce", True) else ep)
        for parameter in model.parameters()
    )
