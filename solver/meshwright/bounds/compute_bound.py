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
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.shards import Shards
from meshwright.plans.skeletons import ZERO_BUBBLE_H1, Skeletons
from meshwright.spec.divisors import divisors
from meshwright.spec.model import Model

FLOAT_ERROR = 1e-9
"""Share by which the sum of kernels is lowered: sums in another order differ less."""


@dataclass(frozen=True)
class ComputeBound:
    """The kernels of a layer of a model on one machine, and the bounds by them.

    The table has every way to split a layer that some plan may have, and more.
    """

    model: Model
    global_batch: int
    tp: Ints
    """Degrees of tensor parallelism in the table, least first, as the next three."""
    cp: Ints
    ep: Ints
    micro_batch: Ints
    layer_s: Floats
    """Seconds of a layer per micro-batch on one GPU, by the above and whether there is
    sequence parallelism, (tp, cp, ep, micro-batch, 2)."""
    forward_s: Floats
    """The same of its forward alone."""

    def least_s(self, gpus: int) -> float:
        """Return seconds that no step does without, infinite if nothing is legal."""
        tp, cp, stages = (
            own.ravel() for own in np.meshgrid(self.tp, self.cp, divisors(gpus))
        )
        at = np.flatnonzero(gpus % (tp * cp * stages) == 0)
        dp = gpus // (tp * cp * stages)[at]
        at = at[self.global_batch % dp == 0]
        dp = gpus // (tp * cp * stages)[at]
        layer_s, forward_s = (
            table[
                np.searchsorted(self.tp, tp[at]), np.searchsorted(self.cp, cp[at])
            ].min(axis=(1, 3))
            for table in (self.layer_s, self.forward_s)
        )
        sequences = (self.global_batch // dp)[:, None]
        pp = stages[at][:, None]
        filling_s = np.minimum(forward_s, layer_s / -(-self.model.n_layers // pp))
        count = sequences / self.micro_batch
        step_s = self._step_s(count, pp, layer_s, filling_s)
        is_whole = sequences % self.micro_batch == 0
        return float(step_s.min(initial=np.inf, where=is_whole))

    def of_rows(self, rows: Skeletons) -> Floats:
        """Return seconds that no step of some skeletons does without, (rows,).

        They need no mesh, and no choice of precision, offload and recomputation.
        """
        at = (
            *(
                np.searchsorted(known, own)
                for known, own in (
                    (self.tp, rows.tp),
                    (self.cp, rows.cp),
                    (self.ep, rows.ep),
                    (self.micro_batch, rows.micro_batch),
                )
            ),
            rows.sequence_parallel.astype(np.int64),
        )
        layer_s, forward_s = self.layer_s[at], self.forward_s[at]
        defers = rows.schedule == ZERO_BUBBLE_H1
        filling_s = np.where(defers, forward_s, layer_s / rows.vpp)
        return self._step_s(rows.microbatches, rows.pp, layer_s, filling_s)

    def shared_s(self, gpus: int) -> float:
        """Return seconds of a step if the GPUs shared the kernels without a loss."""
        sharing = self.tp[:, None] * self.cp / gpus
        by_way = self.layer_s.min(axis=(2, 4)) * sharing[:, :, None]
        each_s = float((by_way / self.micro_batch).min())
        return self._layers * each_s * self.global_batch

    def _step_s(
        self, count: Floats | Ints, pp: Ints, layer_s: Floats, filling_s: Floats
    ) -> Floats:
        """Return the least seconds of a step of `count` micro-batches."""
        largest = -(-self._layers // pp)
        step_s = count * largest * layer_s + (self._layers - largest) * filling_s
        return np.asarray(step_s * (1 - FLOAT_ERROR))

    @property
    def _layers(self) -> int:
        """Return the layers that are alike; those before a pattern are left out."""
        return self.model.n_layers - self.model.leading_layers


def compute_bound(job: Job, gpus: Collection[int]) -> ComputeBound:
    """Return the bound for a job on clusters of the same machine.

    `gpus` are the numbers that the cluster of the job may have. Ends of the model,
    layers before a pattern, and everything but kernels are left out.
    """
    spec = job.spec
    degrees = sorted({degree for count in gpus for degree in divisors(count)})
    tp_list = [own for own in degrees if spec.model.d_ff % own == 0]
    cp_list = [own for own in degrees if spec.training.seq_len % own == 0]
    ep_list = divisors(spec.model.moe.n_experts) if spec.model.moe else [1]
    batches = divisors(spec.training.global_batch)
    lists = tp_list, cp_list, ep_list, batches
    tp, cp, ep, micro_batch, is_sequence = np.array(list(product(*lists, (0, 1)))).T
    shards = Shards(tp, cp, ep, micro_batch, is_sequence.astype(bool))
    found = [_layer(job.at(name), shards) for name in spec.training.precisions]
    shape = *map(len, lists), 2
    return ComputeBound(
        spec.model,
        spec.training.global_batch,
        np.array(tp_list),
        np.array(cp_list),
        np.array(ep_list),
        np.array(batches),
        layer_s=np.min([own for own, _ in found], axis=0).reshape(shape),
        forward_s=np.min([own for _, own in found], axis=0).reshape(shape),
    )


def _layer(job: Job, shards: Shards) -> tuple[Floats, Floats]:
    """Return the seconds of a layer's kernels per micro-batch, and of its forward."""
    kinds = [(kind.share, _kernels(kind.job, shards)) for kind in jobs_of_kinds(job)]
    forward_s = sum(share * own.forward_s for share, own in kinds)
    backward_s = sum(share * own.backward_s for share, own in kinds)
    return np.asarray(forward_s + backward_s), np.asarray(forward_s)


def _kernels(job: Job, shards: Shards) -> LayerKernels:
    return kernels(job.spec, job.efficiency, shards).layer
