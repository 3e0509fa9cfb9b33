"""How the layers of stages are cut into chunks."""

from __future__ import annotations

import pytest

from meshwright.plans.plan import chunk_layers, most_chunks


@pytest.mark.parametrize(
    ("layers", "vpp", "chunks"),
    [
        ([4], 1, (4,)),
        ([4, 4], 2, (2, 2, 2, 2)),
        ([3, 4], 2, (1, 2, 2, 2)),
        # The middle of the model may start after, and end before, an empty chunk.
        ([1, 2, 1], 2, (0, 1, 1, 1, 1, 0)),
    ],
)
def test_chunks_hold_all_layers(
    layers: list[int], vpp: int, chunks: tuple[int, ...]
) -> None:
    assert chunk_layers(layers, vpp) == chunks
    for stage, count in enumerate(layers):
        assert sum(chunks[stage :: len(layers)]) == count


def test_the_405b_recipe_of_megatron_bridge_has_a_layer_in_each_chunk() -> None:
    """126 layers in 16 x 8 chunks: one is the embedding's, one the loss's."""
    chunks = chunk_layers([7, *[8] * 14, 7], 8)
    assert chunks == (0, *[1] * 126, 0)
    assert most_chunks([7, *[8] * 14, 7]) == 8


def test_a_stage_in_the_middle_has_a_layer_for_every_chunk() -> None:
    stages = ([2, 1, 2], [1, 2, 1], [1, 1])
    assert [most_chunks(layers) for layers in stages] == [1, 2, 2]
