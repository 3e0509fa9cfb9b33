"""Texts with numbers: expressions in braces, products with their factors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright.plans.rule import fields_in, filled

VALUES: dict[str, Any] = {
    "spec": SimpleNamespace(model=SimpleNamespace(n_layers=80)),
    "tp": np.int64(8),
    "pp": 4,
    "dp": 2,
    "cp": 1,
    "flag": np.bool_(True),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no numbers", "no numbers"),
        ("tp {tp}", "tp 8"),
        ("{flag}", "true"),
        ("{spec.model.n_layers} mod 3 = {spec.model.n_layers % 3}", "80 mod 3 = 2"),
        ("{96 / (dp * 5)}", "9.6"),
        ("{96 / (dp * 4)}", "12"),
        ("{tp - pp + dp}", "6"),
        ("{spec.model.n_layers // tp}", "10"),
        ("{tp * pp * cp * dp:product}", "tp 8 x pp 4 x dp 2 = 64"),
        ("{tp * cp:product}", "tp 8"),
        ("{cp:product}", "1"),
    ],
)
def test_texts_are_filled(text: str, expected: str) -> None:
    assert filled(text, VALUES.__getitem__) == expected


def test_fields_are_named_from_left_to_right() -> None:
    assert fields_in("{spec.a % (dp * tp)} of {tp}, {pp}") == ("dp", "tp", "pp")


@pytest.mark.parametrize("text", ["{open(1)}", "{tp ** 2}", "{[tp]}"])
def test_only_arithmetic_is_done(text: str) -> None:
    with pytest.raises(ValueError, match="no arithmetic"):
        filled(text, VALUES.__getitem__)
