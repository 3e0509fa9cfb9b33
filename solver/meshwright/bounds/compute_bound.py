"""A lower bound on a step before any lattice is built: the kernels of its layers.

No plan does with less than the kernels of every layer for every sequence, at the shards
for which those take the fewest GPU-seconds; and at best all GPUs share them without a
loss. The number of GPUs only divides it, so that one bound serves all clusters of a
machine.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

import numpy as np

from meshwright.cost.compute import kernels
from meshwright.cost.job import Job
from meshwright.cost.layer_kinds import JobOfKind, jobs_of_kinds
from meshwright.plans.columns import Floats
from meshwright.plans.shards import Shards
from meshwright.spec.divisors import divisors
from meshwright.spec.model import Model

FLOAT_ERROR = 1e-9
"""Share by which the sum of kernels is lowered: sums in another order differ less."""


def least_gpu_seconds(job: Job, gpus: Collection[int]) -> float:
    """Return GPU-seconds that no step of a job does without, on any number of GPUs.

    `gpus` are the numbers that the cluster of the job may have. Ends of the model,
    layers before a pattern, and everything but kernels are left out.
    """
    shards = _every_shards(job, gpus)
    training = job.spec.training
    least_s = min(
        float(_sequence_s(job.at(name), shards).min()) for name in training.precisions
    )
    return least_s * training.global_batch * (1 - FLOAT_ERROR)


def _sequence_s(job: Job, shards: Shards) -> Floats:
    """Return the GPU-seconds of a sequence by shards."""
    model = job.spec.model
    layers = model.n_layers - model.leading_layers
    each = sum(_layer_s(kind, shards) * kind.share for kind in jobs_of_kinds(job))
    sharing = shards.tp * shards.cp / shards.micro_batch
    return np.asarray(layers * each * sharing)


def _layer_s(kind: JobOfKind, shards: Shards) -> Floats:
    """Return the seconds of a layer's kernels per micro-batch on one GPU."""
    layer = kernels(kind.job.spec, kind.job.efficiency, shards).layer
    return layer.forward_s + layer.backward_s


def _every_shards(job: Job, gpus: Collection[int]) -> Shards:
    """Return all ways to split a micro-batch that some plan may have, and more."""
    spec = job.spec
    degrees = {degree for count in gpus for degree in divisors(count)}
    tp = [own for own in degrees if spec.model.d_ff % own == 0]
    cp = [own for own in degrees if spec.training.seq_len % own == 0]
    columns = np.array(
        list(
            product(
                tp,
                cp,
                _expert_degrees(spec.model),
                divisors(spec.training.global_batch),
                (0, 1),
            )
        )
    ).T
    tp_columns, cp_columns, ep, micro_batch, is_sequence = columns
    fits = tp_columns * cp_columns <= max(gpus)
    every = Shards(tp_columns, cp_columns, ep, micro_batch, is_sequence.astype(bool))
    return every.take(np.flatnonzero(fits))


def _expert_degrees(model: Model) -> list[int]:
    return divisors(model.moe.n_experts) if model.moe else [1]
