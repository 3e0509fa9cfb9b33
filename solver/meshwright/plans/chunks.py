"""The chunks of layers that interleaved stages hold."""

from __future__ import annotations

from collections.abc import Sequence


def chunk_layers(layers: Sequence[int], vpp: int) -> tuple[int, ...]:
    """Return the layers of every chunk from those of stages, in the model's order.

    Where chunks of a stage differ, its first ones have a layer less: those have the
    most micro-batches in flight. The last stage keeps an empty chunk for the end of
    the model, which holds the loss, as the first stage keeps one for the embedding.
    """
    counts = [divmod(each, vpp) for each in layers]
    last = len(layers) - 1
    return tuple(
        each + (chunk < over if stage == last and not each else chunk >= vpp - over)
        for chunk in range(vpp)
        for stage, (each, over) in enumerate(counts)
    )


def most_chunks(layers: Sequence[int]) -> int:
    """Return the most chunks a stage of which all hold something.

    That is a layer, the embedding on the first stage, or the loss on the last one.
    """
    last = len(layers) - 1
    return min(each + (stage in (0, last)) for stage, each in enumerate(layers))
