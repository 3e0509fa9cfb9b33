"""Serving of models with several kinds of layers, or with windows of attention.

A stage holds all layers, since such models are served without a pipeline: the mean of
a layer over all kinds adds up exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.cost.whole_model import keys_seen, kinds_of_layers
from meshwright.serving.job import ServingJob


def jobs_of_kinds(job: ServingJob) -> Iterator[tuple[float, ServingJob]]:
    """Yield the share of every kind of layer, and a job with layers of it alone."""
    model = job.model
    if not model.pattern:
        yield 1.0, job
        return
    for own in kinds_of_layers(model):
        spec = job.spec.model_copy(update={"model": own.model})
        yield own.layers / model.n_layers, replace(job, spec=spec)


def reach(job: ServingJob) -> int | None:
    """Return how many tokens of the cache a layer ever reads; None for all."""
    model = job.model
    return model.attention_window or model.attention_chunk or None


def attended_share(job: ServingJob, is_prefill: bool) -> float:
    """Return the share of the tokens before it that a token attends to."""
    most = reach(job)
    if most is None:
        return 1.0
    if is_prefill:
        length = job.inference.prompt_len
        return min(1.0, keys_seen(job.model, length) / (length / 2))
    return min(1.0, most / job.inference.mean_context)
