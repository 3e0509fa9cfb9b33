"""Random pipelines of whole numbers, and every split of their layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

from meshwright.planner.pipeline import Pairs, Pipeline, PipelineStage, StageAmount

HORIZON = 100_000


def random_stage(random: Random, layers: int, recomputes: bool) -> PipelineStage:
    def some(most: int) -> int:
        return random.randint(0, most)

    freed = random.randint(1, 4) if recomputes else 0
    per_layer = freed + random.randint(1, 4)
    links = [
        StageAmount(some(6), some(7), some(4)) for _ in range(random.choice([0, 1, 2]))
    ]
    return PipelineStage(
        fill=StageAmount(some(9), some(9), some(5)),
        pace=StageAmount(some(9) - random.choice([0, 9]), some(9), some(5)),
        sync=StageAmount(some(9), some(4)),
        memory=StageAmount(0, per_layer, -freed),
        capacity=random.randint(2, 6) * layers,
        fewest_layers=random.choice([1, 1, 2]),
        most_layers=random.choice([layers, layers, 3]),
        links=tuple(links),
    )


def random_pipeline(seed: int, *, is_limited: bool = True) -> Pipeline:
    """Return a pipeline of up to three stages, under a limit on links or without."""
    random = Random(seed)
    count, layers = random.randint(1, 3), random.randint(2, 6)
    recomputes = random.random() < 0.6
    stages = [random_stage(random, layers, recomputes) for _ in range(count)]
    pinned = [random.randint(1, 3) for _ in range(count)]
    again = [random.randint(0, 1) for _ in range(count)]
    is_pinned = random.random() < 0.2
    has_numbers = recomputes and random.random() < 0.4
    return Pipeline(
        tuple(stages),
        layers=sum(pinned) if is_pinned else layers,
        horizon=HORIZON,
        is_recomputing=recomputes,
        recomputes_every_layer=random.random() < 0.15,
        same_in_chunks=random.randint(1, 2) if has_numbers else 0,
        pinned_layers=tuple(pinned) if is_pinned else None,
        pinned_recompute=tuple(again) if random.random() < 0.15 else None,
        link_share=random.choice([None, 0.2, 0.3, 0.4]) if is_limited else None,
    )


def amount(stage_amount: StageAmount, n: int, r: int) -> int:
    return (
        stage_amount.fixed
        + n * stage_amount.per_layer
        + r * stage_amount.per_recomputed
    )


def ticks(pipeline: Pipeline, split: Pairs) -> int:
    """Return the step of a split: all stages, and the slowest and longest again."""
    filled, paces, ends = 0, [0], [0]
    for stage, (n, r) in zip(pipeline.stages, split, strict=True):
        filled += amount(stage.fill, n, r)
        paces.append(amount(stage.pace, n, r))
        ends.append(amount(stage.sync, n, r))
    return filled + max(paces) + max(ends)


def is_allowed(pipeline: Pipeline, split: Pairs) -> bool:
    if sum(n for n, _ in split) != pipeline.layers:
        return False
    if pipeline.is_recomputing and not any(r for _, r in split):
        return False
    if pipeline.pinned_layers not in (None, tuple(n for n, _ in split)):
        return False
    if pipeline.pinned_recompute not in (None, tuple(r for _, r in split)):
        return False
    if not recomputes_as_asked(pipeline, split):
        return False
    step = ticks(pipeline, split)
    for stage, (n, r) in zip(pipeline.stages, split, strict=True):
        if amount(stage.memory, n, r) > stage.capacity:
            return False
        for use in stage.links if pipeline.link_share is not None else ():
            busy = amount(use, n, r)
            # Shares count in hundredths of a percent.
            if 10_000 * busy > int((pipeline.link_share or 0) * 10_000) * step:
                return False
    return True


def recomputes_as_asked(pipeline: Pipeline, split: Pairs) -> bool:
    """Return whether chunks recompute as many layers each, and all where they must."""
    if pipeline.is_recomputing and pipeline.recomputes_every_layer:
        return all(n == r for n, r in split)
    chunks = pipeline.same_in_chunks
    if not chunks:
        return True
    return any(
        all(r == min(chunks * k, n) for n, r in split)
        for k in range(pipeline.layers + 1)
    )


def splits(pipeline: Pipeline) -> Iterator[Pairs]:
    """Yield every split that a pipeline allows."""
    each = [
        [
            (n, r)
            for n in range(stage.fewest_layers, stage.most_layers + 1)
            for r in range((n if stage.memory.per_recomputed else 0) + 1)
        ]
        for stage in pipeline.stages
    ]
    yield from (one for one in product(*each) if is_allowed(pipeline, one))


def evenness(split: Pairs) -> tuple[int, ...]:
    """Return what settles ties: even ones first, then fewer layers at the front."""
    layers = [n for n, _ in split]
    return (max(layers), -min(layers), *layers, *(r for _, r in split))
