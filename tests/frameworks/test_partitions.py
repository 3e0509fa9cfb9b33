"""How frameworks split layers over stages by themselves."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest

from meshwright.frameworks.base.registry import framework
from meshwright.spec.model import Model

SHAPE = {"d_model": 4096, "n_heads": 32, "d_ff": 14336, "vocab": 128_256}


def layers(name: str, stages: int, **shape: Any) -> list[int]:
    partition = framework(name).partition
    assert partition is not None
    model = Model.model_validate({**SHAPE, **shape})
    return list(partition.layers(model, stages))


@pytest.mark.parametrize(
    ("name", "n_layers", "expected"),
    [
        # What the functions of the frameworks return for these numbers.
        ("deepspeed", 12, [3, 3, 3, 3]),
        ("deepspeed", 13, [4, 3, 3, 3]),
        ("deepspeed", 10, [3, 3, 2, 2]),
        ("internevo", 13, [3, 3, 3, 4]),
        ("internevo", 10, [2, 2, 3, 3]),
        # A head of 525 M parameters weighs as much as 2.2 layers.
        ("nanotron", 32, [9, 9, 8, 6]),
    ],
)
def test_known_splits(name: str, n_layers: int, expected: list[int]) -> None:
    assert layers(name, 4, n_layers=n_layers) == expected


@pytest.mark.parametrize("name", ["deepspeed", "internevo", "nanotron"])
@pytest.mark.parametrize("stages", [1, 2, 3, 7, 12])
def test_all_layers_are_somewhere(name: str, stages: int) -> None:
    for n_layers in range(stages, 40):
        found = layers(name, stages, n_layers=n_layers)
        assert len(found) == stages
        assert sum(found) == n_layers


def test_deepspeed_levels_stages_as_no_other_split_does() -> None:
    for n_layers in range(3, 10):
        found = layers("deepspeed", 3, n_layers=n_layers)
        every = (
            [b - a for a, b in pairwise((0, *cut, n_layers))]
            for cut in combinations(range(1, n_layers), 2)
        )
        assert max(found) - min(found) == min(max(e) - min(e) for e in every)
        assert found == sorted(found, reverse=True)


def test_a_head_as_large_as_many_layers_leaves_the_last_stage_none() -> None:
    """Two layers before a head of twelve: the rule excludes such a pipeline."""
    assert layers("nanotron", 2, n_layers=2, vocab=700_000) == [2, 0]
