"""What makes a plan simple, in the order in which plans are compared."""

from __future__ import annotations

from typing import Literal, get_args

Criterion = Literal[
    "techniques",
    "offload",
    "short_context_parallel",
    "zero3_in_pipeline",
    "uneven_stages",
    "partial_recompute",
    "odd_micro_batch",
]
"""A property that an engineer would rather a plan did not have.

- techniques: how many techniques beyond data parallelism it has;
- offload: whether state lives in host memory;
- short_context_parallel: whether short sequences are split over GPUs;
- zero3_in_pipeline: whether parameters are gathered for every micro-batch of a stage;
- uneven_stages: whether stages differ in their layers;
- partial_recompute: whether some layers are recomputed and others are not;
- odd_micro_batch: whether the micro-batch is no power of two.
"""

CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
"""All criteria in their default order: the first says most."""

OF_SPLIT: tuple[Criterion, ...] = ("uneven_stages", "partial_recompute")
"""Criteria that depend on how the layers of a skeleton are split."""

LONG_CONTEXT = 32_768
"""Tokens of a sequence from which context parallelism is what one does."""
