"""Brute force over every deployment and every split of layers.

It shares with the solver what a plan costs (`serving.check`), and nothing else: it
lists plans with its own loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from meshwright.results.serving import ServingPlan
from meshwright.serving.check import broken_rules, check
from meshwright.serving.deployment import ServingJob, make_serving_job
from meshwright.spec.serving import ServingSpec


def brute_force(spec: ServingSpec) -> float:
    """Return the least objective over every plan that fits; infinite if none does."""
    job = make_serving_job(spec)
    fitting = (plan for plan in _plans(job) if not broken_rules(job, plan))
    return min((check(job, plan).objective_s for plan in fitting), default=math.inf)


def _plans(job: ServingJob) -> Iterator[ServingPlan]:
    sizes = job.fabric.sizes
    per_level = [list(_triples(size)) for size in sizes]
    for factors in itertools.product(*per_level):
        tp, replicas, pp = (math.prod(axis) for axis in zip(*factors, strict=True))
        mesh = dict(
            zip(("tp", "dp_replicate", "pp"), zip(*factors, strict=True), strict=True)
        )
        ones = (1,) * len(sizes)
        choices = (
            _splits(job.model.n_layers, pp),
            range(1, job.inference.batch + 1),
            [groups for groups in range(1, tp + 1) if tp % groups == 0],
        )
        for layers, groups, attention_dp in itertools.product(*choices):
            yield ServingPlan(
                tp=tp,
                pp=pp,
                dp_replicate=replicas,
                microbatches=groups,
                attention_dp=attention_dp,
                layers=layers,
                mesh={**mesh, "cp": ones, "dp_shard": ones},
            )


def _triples(size: int) -> Iterator[tuple[int, int, int]]:
    for a, b in itertools.product(range(1, size + 1), repeat=2):
        if size % (a * b) == 0:
            yield a, b, size // (a * b)


def _splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        ends = (0, *cuts, layers)
        yield tuple(b - a for a, b in itertools.pairwise(ends))
