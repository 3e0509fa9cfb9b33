"""Predictions of serving against measurements that no number was fitted to."""

from __future__ import annotations

import pytest
from benchmarks.serving.__main__ import CLOSE, Row, rows

LEAST_CLOSE = {"gpt-fast": 7, "lmdeploy": 44, "TensorRT-LLM A100": 11,
               "TensorRT-LLM H100": 11, "TensorRT-LLM L40S": 8}  # fmt: skip
"""Rows of each source that docs/serving.md says are within 20 %."""


@pytest.fixture(scope="module")
def measured() -> list[Row]:
    return list(rows())


def test_every_published_row_is_there(measured: list[Row]) -> None:
    assert len(measured) == 152
    assert sum(row.metric == "tokens_per_s" for row in measured) == 132


@pytest.mark.parametrize("source", LEAST_CLOSE)
def test_predictions_are_as_close_as_we_say(measured: list[Row], source: str) -> None:
    own = [row for row in measured if row.source == source]
    assert sum(abs(row.error) <= CLOSE for row in own) >= LEAST_CLOSE[source]


def test_tensor_parallelism_speeds_up_as_measured(measured: list[Row]) -> None:
    """gpt-fast, Llama 2 7B in bf16 on 1, 2, 4 and 8 GPUs: 3.1 times as fast on 8."""
    own = [r for r in measured if r.source == "gpt-fast"]
    bf16 = [r for r in own if r.spec.inference.precision == "bf16"]
    small = sorted((r.tp, r) for r in bf16 if r.spec.model.name == "llama2-7b")
    first, last = small[0][1], small[-1][1]
    assert [tp for tp, _ in small] == [1, 2, 4, 8]
    speedup = last.predicted / first.predicted
    assert speedup == pytest.approx(last.measured / first.measured, rel=0.2)
