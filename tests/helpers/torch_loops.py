"""Loops over packed texts out of PyTorch operations, and how many kernels they start.

They do what the sources of `frameworks.megatron.TEXT_LOOPS` do, in other words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

STARTS_NOTHING = {
    "view", "slice", "select", "unsqueeze", "squeeze", "split", "split_with_sizes",
    "expand", "as_strided", "unbind", "alias", "detach", "empty_like",
    "new_empty_strided",
}  # fmt: skip
"""Operations that return a part of a tensor, or room for one."""


class Kernels(TorchDispatchMode):
    """Counts the operations that start a kernel, or fetch a number for the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = operation.overloadpacket.__name__
        if name == "slice_backward":
            # Zeros, and a copy into them of what there is.
            self.count += 1 + bool(args[0].numel())
        elif name not in STARTS_NOTHING and not (
            name == "copy_" and not args[0].numel()
        ):
            self.count += 1
        return operation(*args, **(kwargs or {}))


def started(run: Callable[[int], object]) -> int:
    """Return the kernels that one text more starts."""
    counts: list[int] = []
    for texts in (3, 4):
        with Kernels() as kernels:
            run(texts)
        counts.append(kernels.count)
    return counts[1] - counts[0]


def positions(texts: int, cp: int, is_latent: bool) -> Tensor:
    """Return turned queries, text by text, as a part of a graph."""
    length = 8
    leaf = torch.ones(texts * length, 2, 16, dtype=torch.bfloat16, requires_grad=True)
    queries, angles = leaf * 1, torch.ones(cp * length, 1, 1, 16)
    turned = torch.empty_like(queries)
    for number, text in enumerate(torch.split(queries, [length] * texts)):
        found = angles[:length]
        if cp > 1:
            half = length // 2
            found = torch.cat([angles[:half], angles[-half:]])
        result = _turned(text.unsqueeze(1), found, is_latent).squeeze(1)
        turned.narrow(0, number * length, length).copy_(result)
    return turned


def _turned(text: Tensor, angles: Tensor, is_latent: bool) -> Tensor:
    width = angles.shape[-1]
    text, rest = text[..., :width], text[..., width:]
    if is_latent:
        text = torch.cat((text[..., 0::2], text[..., 1::2]), dim=-1)
    cosine = (torch.cos(angles) * 1.0).to(text.dtype)
    sine = (torch.sin(angles) * 1.0).to(text.dtype)
    first, second = torch.chunk(text, 2, dim=-1)
    half_turned = torch.cat((-second, first), dim=-1)
    return torch.cat((text * cosine + half_turned * sine, rest), dim=-1)


def towards_heads(texts: int, cp: int) -> Tensor:
    """Return the indices that put the chunks of all ranks in the order of texts."""
    bounds = _bounds(texts, cp) // cp
    length, chunks = bounds[-1], torch.arange(2 * cp, dtype=torch.int32)

    def ranges() -> Iterator[Tensor]:
        for start, end in pairwise(bounds):
            for place, chunk in enumerate(chunks):
                if place < cp:
                    first = start + length * (chunk // 2)
                    last = (start + end) // 2 + length * (chunk // 2)
                else:
                    first = (start + end) // 2 + length * (chunk // 2)
                    last = end + length * (chunk // 2)
                yield torch.arange(first, last)

    return torch.cat([*ranges()])


def towards_tokens(texts: int, cp: int) -> Tensor:
    """Return the indices that put texts in the order of the chunks of all ranks."""
    bounds, parts = _bounds(texts, cp), 2 * cp
    sizes = (bounds[1:] - bounds[:-1]) // parts

    def ranges() -> Iterator[Tensor]:
        for rank in range(cp):
            for size, start in zip(sizes, bounds[:-1], strict=True):
                yield torch.arange(start + rank * size, start + (rank + 1) * size)
                last = parts - rank
                yield torch.arange(start + (last - 1) * size, start + last * size)

    return torch.cat([*ranges()])


def _bounds(texts: int, cp: int) -> Tensor:
    return torch.arange(texts + 1, dtype=torch.int32) * 4 * cp
