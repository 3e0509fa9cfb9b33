"""The order of kinds of layers, and kinds that contradict the model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from meshwright.spec.model import Model
from meshwright.spec.model_parts import order_of

SHAPE: dict[str, Any] = {
    "n_layers": 12, "d_model": 64, "n_heads": 4, "d_ff": 256, "vocab": 100,
}  # fmt: skip
KINDS: dict[str, Any] = {"near": {"attention_window": 8}, "all": {}}
SHARING: dict[str, Any] = {"a": {}, "b": {"shares_indexer": True}}
INDEXED: dict[str, Any] = {
    "q_rank": 8, "kv_rank": 8, "rope_dim": 4, "nope_dim": 4, "v_dim": 8,
    "indexer": {"n_heads": 2, "head_dim": 4, "top_k": 8},
}  # fmt: skip


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=9), st.integers(1, 40))
def test_an_order_is_the_pattern_again(pattern: list[str], layers: int) -> None:
    """Leading layers and repetitions are all layers, in the order of the pattern."""
    order = order_of(tuple(pattern), layers)
    every = [*order.leading, *order.repeats * order.repeated]
    assert every == [pattern[index % len(pattern)] for index in range(layers)]
    shares = order.shares()
    assert sum(shares.values()) == pytest.approx(1)


@given(st.integers(1, 8), st.integers(2, 6))
def test_whole_patterns_have_no_leading_layers(size: int, repeats: int) -> None:
    pattern = ("near",) * size + ("all",)
    order = order_of(pattern, repeats * len(pattern))
    assert (order.leading, order.period) == ((), size + 1)


def test_an_irregular_order_repeats_as_a_whole() -> None:
    order = order_of(tuple("abbbabaabab"), 11)
    assert (order.leading, order.period, order.repeats) == ((), 11, 1)


def test_a_kind_changes_the_fields_that_it_names() -> None:
    model = Model.model_validate({**SHAPE, "kinds": KINDS, "pattern": ["near", "all"]})
    assert model.of_kind("near").attention_window == 8
    assert model.of_kind("all").attention_window == 0
    assert model.of_kind("near").pattern == ()
    assert model.order.repeats == 6


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"pattern": ["far"], "kinds": KINDS}, "is not in model.kinds"),
        ({"pattern": ["near"], "kinds": KINDS}, "a kind needs a layer"),
        ({"pattern": ["near", "all"] * 7, "kinds": KINDS}, "more than model.n_layers"),
        ({"mixer": "state_space"}, "needs model.state_space"),
        ({"attention_window": 8, "attention_chunk": 8}, "accepted: one of them"),
        ({"mixer": "none", "d_ff": 0}, "leaves an empty layer"),
        (
            {"pattern": ["a"], "kinds": {"a": {"n_kv_heads": 3}}},
            "does not divide the 4 query heads",
        ),
        (
            {"pattern": ["a"], "kinds": {"a": {"experts": True}}},
            "without model.moe",
        ),
        (
            {"pattern": ["a"], "kinds": {"a": {"shares_indexer": True}}},
            "without model.mla.indexer",
        ),
        (
            {"mla": INDEXED, "bias": "none", "pattern": ["b", "a"], "kinds": SHARING},
            "shares the indexer of a layer before it, and is the first",
        ),
        (
            {"mla": INDEXED, "bias": "none", "shares_indexer": True},
            "in a kind of model.kinds",
        ),
    ],
)
def test_kinds_that_contradict_the_model_are_refused(
    fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        Model.model_validate({**SHAPE, **fields})
