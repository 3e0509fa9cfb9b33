"""A lower bound on a step before any lattice is built: the kernels of its layers.

No plan does with less than the kernels of every layer for every sequence. With p stages
some stage runs at least ceil(L / p) of the L layers, for all m micro-batches; the other
layers fill the pipeline once: the schedule runs at least one of v <= ceil(L / p) chunks
of them before or after, or, where gradients of weights are deferred, their forwards.
Neither messages nor memory count, so that one table of kernels serves all clusters of a
machine.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import product

import numpy as np

from meshwright.cost.compute import LayerKernels, kernels
from meshwright.cost.job import Job
from meshwright.cost.layer_kinds import jobs_of_kinds
from meshwright.plans.columns import Bools, Floats, Ints
from meshwright.plans.shards import Shards
from meshwright.spec.divisors import divisors
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import AXES

FLOAT_ERROR = 1e-9
"""Share by which the sum of kernels is lowered: sums in another order differ less."""


@dataclass(frozen=True)
class ComputeBound:
    """The kernels of a layer of a model on one machine, and the bounds by them."""

    model: Model
    global_batch: int
    tp: Ints
    """The degrees of tensor parallelism in the table, in order."""
    cp: Ints
    micro_batch: Ints
    """Sequences of a micro-batch, for each way to split it further, (ways,)."""
    layer_s: Floats
    """Seconds of a layer per micro-batch on one GPU, (tp, cp, ways)."""
    forward_s: Floats
    """The same of its forward alone."""

    def least_s(self, gpus: int) -> float:
        """Return seconds that no step does without, infinite if nothing is legal."""
        return float(self.of_degrees(self._every_degree(gpus)).min(initial=np.inf))

    def shared_s(self, gpus: int) -> float:
        """Return the same if the GPUs shared the kernels without a loss."""
        sharing = self.tp[:, None, None] * self.cp[:, None] / self.micro_batch
        each = float((self.layer_s * sharing).min())
        return self._layers * each * self.global_batch * (1 - FLOAT_ERROR) / gpus

    def of_degrees(self, degrees: Ints) -> Floats:
        """Return seconds that no step with some degrees does without, (degrees,).

        `degrees` is (degrees, axes). They are infinite where no plan has them.
        """
        tp, cp, shard, replicate, pp = degrees.T
        is_known = np.isin(tp, self.tp) & np.isin(cp, self.cp)
        at = tuple(
            np.searchsorted(known, own[is_known])
            for known, own in ((self.tp, tp), (self.cp, cp))
        )
        result = np.full(len(degrees), np.inf)
        dp, pp = (shard * replicate)[is_known], pp[is_known]
        result[is_known] = self._steps_s(self.layer_s[at], self.forward_s[at], dp, pp)
        return result

    def _steps_s(self, layer_s: Floats, forward_s: Floats, dp: Ints, pp: Ints) -> Floats:
        """Return the least seconds over all ways, given kernels, (degrees, ways)."""
        sequences = self.global_batch // dp
        is_legal = self._are_whole(dp, sequences)
        count = sequences[:, None] / self.micro_batch
        largest = -(-self._layers // pp)[:, None]
        chunks = -(-self.model.n_layers // pp)[:, None]
        filling_s = np.minimum(forward_s, layer_s / chunks)
        step_s = count * largest * layer_s + (self._layers - largest) * filling_s
        least_s = np.where(is_legal, step_s, np.inf).min(axis=1)
        return np.asarray(least_s * (1 - FLOAT_ERROR))

    def _are_whole(self, dp: Ints, sequences: Ints) -> Bools:
        """Return where ranks and micro-batches have whole sequences."""
        is_even = (self.global_batch % dp == 0)[:, None]
        return np.asarray(is_even & (sequences[:, None] % self.micro_batch == 0))

    @property
    def _layers(self) -> int:
        """Return the layers that are alike; those before a pattern are left out."""
        return self.model.n_layers - self.model.leading_layers

    def _every_degree(self, gpus: int) -> Ints:
        """Return all degrees of a number of GPUs, with replicas alone, as columns."""
        pp = np.array(divisors(gpus))
        tp, cp, pp = (own.ravel() for own in np.meshgrid(self.tp, self.cp, pp))
        used = tp * cp * pp
        fits = gpus % used == 0
        columns = {"tp": tp, "cp": cp, "pp": pp, "dp_replicate": gpus // used}
        ones = np.ones_like(tp)
        return np.stack([columns.get(axis, ones) for axis in AXES], axis=1)[fits]


def compute_bound(job: Job, gpus: Collection[int]) -> ComputeBound:
    """Return the bound for a job on clusters of the same machine.

    `gpus` are the numbers that the cluster of the job may have. Ends of the model,
    layers before a pattern, and everything but kernels are left out.
    """
    spec = job.spec
    degrees = sorted({degree for count in gpus for degree in divisors(count)})
    tp = [own for own in degrees if spec.model.d_ff % own == 0]
    cp = [own for own in degrees if spec.training.seq_len % own == 0]
    batches = divisors(spec.training.global_batch)
    ways = list(product(_expert_degrees(spec.model), batches, (0, 1)))
    every = np.array([(*own, *way) for *own, way in product(tp, cp, ways)]).T
    tp_columns, cp_columns, ep, micro_batch, is_sequence = every
    shards = Shards(tp_columns, cp_columns, ep, micro_batch, is_sequence.astype(bool))
    found = [_layer(job.at(name), shards) for name in spec.training.precisions]
    shape = len(tp), len(cp), len(ways)
    return ComputeBound(
        spec.model,
        spec.training.global_batch,
        np.array(tp),
        np.array(cp),
        np.array([way[1] for way in ways]),
        np.min([layer_s for layer_s, _ in found], axis=0).reshape(shape),
        np.min([forward_s for _, forward_s in found], axis=0).reshape(shape),
    )


def _layer(job: Job, shards: Shards) -> tuple[Floats, Floats]:
    """Return the seconds of a layer's kernels per micro-batch, and of its forward."""
    kinds = [(kind.share, _kernels(kind.job, shards)) for kind in jobs_of_kinds(job)]
    forward_s = sum(share * own.forward_s for share, own in kinds)
    backward_s = sum(share * own.backward_s for share, own in kinds)
    return np.asarray(forward_s + backward_s), np.asarray(forward_s)


def _kernels(job: Job, shards: Shards) -> LayerKernels:
    return kernels(job.spec, job.efficiency, shards).layer


def _expert_degrees(model: Model) -> list[int]:
    return divisors(model.moe.n_experts) if model.moe else [1]
