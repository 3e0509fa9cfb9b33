"""Predictions of serving against published measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.serving.by_source import CLOSE
from benchmarks.serving.fit import ESTIMATED, GRID, fit, left_out, tried
from benchmarks.serving.rows import Row, errors, rows

from meshwright.serving.deployment import Engine

LEAST_CLOSE = {"gpt-fast": 12, "lmdeploy": 69, "TensorRT-LLM A100": 13,
               "TensorRT-LLM H100": 16, "TensorRT-LLM L40S": 8}  # fmt: skip
"""Rows of each source that docs/serving.md says are within 20 %."""


@pytest.fixture(scope="module")
def measured() -> list[Row]:
    return list(rows())


def of_source(measured: list[Row], source: str) -> list[Row]:
    return [row for row in measured if row.source == source]


def test_every_published_row_is_there(measured: list[Row]) -> None:
    assert len(measured) == 152
    assert sum(row.metric == "tokens_per_s" for row in measured) == 132


@pytest.mark.parametrize("source", LEAST_CLOSE)
def test_predictions_are_as_close_as_we_say(measured: list[Row], source: str) -> None:
    off = abs(errors(of_source(measured, source), Engine()))
    assert (off <= CLOSE).sum() >= LEAST_CLOSE[source]


def test_predictions_before_any_fit_are_close_already(measured: list[Row]) -> None:
    throughputs = [row for row in measured if row.metric == "tokens_per_s"]
    off = abs(errors(throughputs, ESTIMATED))
    assert (off <= CLOSE).sum() >= 105
    assert np.expm1(np.median(off)) <= 0.09


def test_tensor_parallelism_speeds_up_as_measured(measured: list[Row]) -> None:
    """gpt-fast, Llama 2 7B in bf16 on 1, 2, 4 and 8 GPUs: 3.1 times as fast on 8."""
    found = of_source(measured, "gpt-fast")
    bf16 = [r for r in found if r.spec.inference.precision == "bf16"]
    small = sorted((r.plan.tp, r) for r in bf16 if r.spec.model.name == "llama2-7b")
    first, last = small[0][1], small[-1][1]
    assert [tp for tp, _ in small] == [1, 2, 4, 8]
    speedup = last.predicted(Engine()) / first.predicted(Engine())
    assert speedup == pytest.approx(last.measured / first.measured, rel=0.2)


def test_the_shipped_numbers_are_those_of_the_fit(measured: list[Row]) -> None:
    """And every source is near, by the numbers that a fit to the others gives."""
    throughputs = [row for row in measured if row.metric == "tokens_per_s"]
    off = [tried(row) for row in throughputs]
    assert fit(throughputs, off) == Engine()
    others = left_out(throughputs, off)
    held_out = np.array([abs(row.error(others[row.source])) for row in throughputs])
    assert (held_out <= CLOSE).sum() >= 105
    assert np.expm1(np.median(held_out)) <= 0.09


def test_what_a_fit_tries_is_what_is_predicted(measured: list[Row]) -> None:
    """Of grouped queries read head by head, and of a host that does not wait."""
    engine = replace(ESTIMATED, memory=0.74, pass_s=2e-3, reread=1.25)
    found = (GRID[name].index(getattr(engine, name)) for name in GRID)
    at = tuple(found)
    for source in ("lmdeploy", "gpt-fast"):
        row = of_source(measured, source)[-1]
        errors_tried = tried(row)
        shape = tuple(len(values) for values in GRID.values())
        expected = np.broadcast_to(errors_tried, shape)[at]
        assert row.error(engine) == pytest.approx(expected, rel=1e-9)
