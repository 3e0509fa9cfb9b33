"""The most requests, and the longest context, for which a plan has memory."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.results.serving import Largest, ServingPlan
from meshwright.serving.bisection import last_true
from meshwright.serving.check import broken_rules, check
from meshwright.serving.job import ServingJob
from meshwright.spec.base import MAX_COUNT


def largest_load(job: ServingJob, plan: ServingPlan) -> Largest:
    """Return the most requests, and the longest context, that fit with a plan."""
    inference, positions = job.inference, job.model.learned_positions
    batch = largest_batch(job, plan, MAX_COUNT)

    def fits(context: int) -> bool:
        prompt_len = context - inference.output_len
        return _fits(job.with_inference(prompt_len=prompt_len), plan)

    return Largest(
        batch=batch,
        context=_most(fits, inference.output_len + 1, positions or MAX_COUNT),
        tokens_per_s=check(job.with_inference(batch=batch), plan).tokens_per_s,
    )


def largest_batch(job: ServingJob, plan: ServingPlan, wanted: int) -> int:
    """Return the most requests that fit with a plan, up to the number wanted."""
    return _most(lambda batch: _fits(job.with_inference(batch=batch), plan), 1, wanted)


def _fits(job: ServingJob, plan: ServingPlan) -> bool:
    return not any(rule.rule == "memory" for rule in broken_rules(job, plan))


def _most(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number that fits; `least` is taken to fit."""
    return most if fits(most) else last_true(fits, least, most)
