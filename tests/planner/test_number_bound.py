"""The bound for one number of recomputed layers, against all splits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.best_split import _least_sum, least_ticks_of_number
from meshwright.planner.pipeline import Pipeline, PipelineStage, StageAmount

TICKS = st.integers(0, 40)


@st.composite
def stages(draw: st.DrawFn) -> PipelineStage:
    """Return a stage whose recomputed layers hold less than others."""
    fewest = draw(st.integers(1, 2))
    per_layer = draw(st.integers(2, 9))
    fill, pace = (StageAmount(draw(TICKS), draw(TICKS), draw(TICKS)) for _ in "ab")
    return PipelineStage(
        fill=fill,
        pace=pace,
        sync=StageAmount(draw(TICKS), draw(TICKS)),
        memory=StageAmount(0, per_layer, -draw(st.integers(1, per_layer - 1))),
        capacity=draw(st.integers(0, 40)),
        fewest_layers=fewest,
        most_layers=fewest + draw(st.integers(0, 3)),
    )


def all_ticks(pipeline: Pipeline, number: int) -> list[int]:
    """Return the ticks of every split that fits."""
    ranges = (
        range(stage.fewest_layers, stage.most_layers + 1) for stage in pipeline.stages
    )
    found = []
    for held in product(*ranges):
        split = [(n, min(number * pipeline.same_in_chunks, n)) for n in held]
        filled = list(zip(pipeline.stages, split, strict=True))
        if sum(held) == pipeline.layers and all(
            one.memory.of(*pair) <= one.capacity for one, pair in filled
        ):
            fill = sum(one.fill.of(*pair) for one, pair in filled)
            pace = max(one.pace.of(*pair) for one, pair in filled)
            found.append(fill + pace + max(one.sync.of(*pair) for one, pair in filled))
    return found


@settings(max_examples=400)
@given(
    st.lists(stages(), min_size=1, max_size=3),
    st.integers(1, 2),
    st.integers(1, 12),
    st.integers(0, 4),
)
def test_no_split_goes_below(
    this: list[PipelineStage], chunks: int, layers: int, number: int
) -> None:
    pipeline = Pipeline(tuple(this), layers, same_in_chunks=chunks)
    ticks = all_ticks(pipeline, number)
    assert least_ticks_of_number(pipeline, number) <= min(ticks, default=inf)


def test_it_is_exact_where_stages_are_alike_and_even() -> None:
    stage = PipelineStage(
        fill=StageAmount(5, 3, 2),
        pace=StageAmount(1, 7, 4),
        sync=StageAmount(2, 1),
        memory=StageAmount(0, 4, -3),
        capacity=10,
        fewest_layers=4,
        most_layers=4,
    )
    pipeline = Pipeline((stage, stage), 8, same_in_chunks=2)
    # Four layers hold 16 chunks, less 6 with one of two recomputed in each chunk.
    assert least_ticks_of_number(pipeline, 0) == inf
    assert least_ticks_of_number(pipeline, 1) == min(all_ticks(pipeline, 1))
    assert least_ticks_of_number(replace(pipeline, layers=9), 1) == inf


@pytest.mark.parametrize("seed", range(100))
def test_the_least_sum_asks_no_cap_for_more_than_could_help(seed: int) -> None:
    """What is least under a cap only falls as the cap rises."""
    random = Random(seed)
    caps = sorted(random.sample(range(40), random.randint(0, 9)))
    falling = sorted((random.randint(0, 30) for _ in caps), reverse=True)
    under = dict(zip(caps, falling, strict=True))
    below, asked = random.randint(0, 60), list[int]()
    reached = below

    def least(cap: int, limit: int) -> int:
        nonlocal reached
        asked.append(cap)
        # What is least here holds for the caps below too, and refutes some of them.
        assert 0 < limit in {reached - one for one in caps if one <= cap}
        found = min(under[cap], limit)
        reached = min(reached, cap + found)
        return found

    sums = [cap + more for cap, more in under.items()]
    assert _least_sum(np.array(caps), least, below) == min([below, *sums])
    assert len(asked) == len({*asked})
