"""A lower bound on a step before any lattice is built: the compute of its layers.

Every plan runs the kernels of every layer for every sequence, and waits for the
messages of tensor parallelism between them. With p stages some stage runs at
least ceil(L / p) of the L layers, for all m micro-batches. The other layers fill the
pipeline once: one of v <= ceil(L / p) chunks of them runs before or after, or, where
gradients of weights are deferred, their forwards or, in a V, a share of them. No other
messages count, nor does memory, so that one table of layers serves all clusters of a
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.layer_kinds import mean_time_costs
from meshwright.frameworks.base.registry import framework_of, tries_v
from meshwright.plans.columns import Bools, Floats, Ints, added, total
from meshwright.plans.schedules import LEAST_FILL, SPLITS_BACKWARD
from meshwright.plans.skeletons import Skeletons, plain_columns
from meshwright.spec.base import divisors
from meshwright.spec.cluster import Cluster
from meshwright.spec.model import Model
from meshwright.topology.fabric import PathCosts, free_paths
from meshwright.topology.groups import GROUPS, TP
from meshwright.topology.routed_fabric import build_fabric

RINGS = 1
"""Column of `Fabric.least` that is about rings."""

FLOAT_ERROR = 1e-9
"""Share by which the sum of layers is lowered: sums in another order differ less."""


class BestCase(NamedTuple):
    """The degrees by which the compute of layers takes least on some GPUs."""

    step_s: float
    degrees: tuple[int, ...]
    """Of tp, pp, cp, data parallelism, and the micro-batch."""
    kernels_s: tuple[float, float]
    """Seconds of a micro-batch in a layer, and where it only fills the pipeline."""


@dataclass(frozen=True)
class ComputeBound:
    """The seconds of a layer of a model on one machine, and the bounds by them.

    The table has every way to split a layer that some plan may have, and more; what no
    plan has takes endless.
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
    """Seconds of its forward alone."""
    least_fill: float
    """Least share of a forward that fills the pipeline, under any schedule."""

    def least_s(self, gpus: int) -> float:
        """Return a lower bound on the step time, seconds; infinite if none is legal."""
        case = self.best_case(gpus)
        return np.inf if case is None else case.step_s

    def best_case(self, gpus: int) -> BestCase | None:
        """Return the degrees by which the bound is least; None if none is legal."""
        grid = np.indices((len(self.tp), len(self.cp))).reshape(2, -1, 1)
        pp = np.array(divisors(gpus))
        used = self.tp[grid[0]] * self.cp[grid[1]] * pp
        which, stages = np.nonzero((gpus % used == 0) & self._are_shared(gpus // used))
        at = tuple(grid[:, which, 0])
        layer_s, forward_s = (
            table[at].min(axis=(1, 3)) for table in (self.layer_s, self.forward_s)
        )
        sequences = self.global_batch * used[which, stages, None] // gpus
        pp = pp[stages][:, None]
        chunk_s = layer_s / -(-self.model.n_layers // pp)
        filling_s = np.minimum(self.least_fill * forward_s, chunk_s)
        # What no plan has is endless, also where no layer is left to fill.
        filling_s = np.where(np.isfinite(layer_s), filling_s, 0.0)
        count = sequences / self.micro_batch
        step_s = self._step_s(count, pp, layer_s, filling_s)
        step_s = np.where(sequences % self.micro_batch == 0, step_s, np.inf)
        if not np.isfinite(step_s).any():
            return None
        row, size = np.unravel_index(step_s.argmin(), step_s.shape)
        tp, cp = self.tp[at[0][row]], self.cp[at[1][row]]
        stages_, micro_batch = pp[row, 0], self.micro_batch[size]
        dp = gpus // (tp * cp * stages_)
        degrees = tuple(map(int, (tp, stages_, cp, dp, micro_batch)))
        kernels_s = float(layer_s[row, size]), float(filling_s[row, size])
        return BestCase(float(step_s[row, size]), degrees, kernels_s)

    def of_rows(self, rows: Skeletons) -> Floats:
        """Return lower bounds on the seconds of a step of some skeletons, (rows,).

        They need no mesh, and no choice of precision, offload and recomputation.
        """
        at = (
            *(
                np.searchsorted(known, column)
                for known, column in (
                    (self.tp, rows.tp),
                    (self.cp, rows.cp),
                    (self.ep, rows.ep),
                    (self.micro_batch, rows.micro_batch),
                )
            ),
            rows.sequence_parallel.astype(np.int64),
        )
        layer_s, forward_s = self.layer_s[at], self.forward_s[at]
        defers = SPLITS_BACKWARD[rows.schedule]
        share_s = LEAST_FILL[rows.schedule] * forward_s
        filling_s = np.where(defers, share_s, layer_s / rows.vpp)
        return self._step_s(rows.microbatches, rows.pp, layer_s, filling_s)

    def shared_s(self, gpus: int) -> float:
        """Return seconds of a step if the GPUs shared the layers without a loss."""
        sharing = self.tp[:, None] * self.cp / gpus
        by_way = self.layer_s.min(axis=(2, 4)) * sharing[:, :, None]
        each_s = float((by_way / self.micro_batch).min())
        return self._layers * each_s * self.global_batch

    def _are_shared(self, dp: Ints) -> Bools:
        """Return whether the batch divides evenly over these data-parallel ranks."""
        return np.asarray(self.global_batch % np.maximum(dp, 1) == 0)

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


@dataclass
class Wanted:
    """Says which skeletons to list: those whose kernels take no more than `most_s`."""

    compute: ComputeBound
    most_s: float
    least_of_others_s: float = inf
    """Lower bound on the step time of all other skeletons."""

    def __call__(self, rows: Skeletons) -> Bools:
        """Return which of the skeletons may take no more than `most_s`."""
        bound_s = self.compute.of_rows(rows)
        near = np.asarray(bound_s <= self.most_s)
        self.least_of_others_s = float(bound_s.min(initial=inf, where=~near))
        return near


def compute_bound(job: Job, clusters: Sequence[Cluster]) -> ComputeBound:
    """Return the bound for a job on any of some clusters of the same machine.

    Ends of the model, layers before a pattern, and all traffic but that of tensor
    parallelism are left out.
    """
    spec = job.spec
    degrees = sorted(
        {degree for cluster in clusters for degree in divisors(cluster.gpus)}
    )
    widths = spec.model.d_ff, spec.model.n_heads
    tp_list = [tp for tp in degrees if all(width % tp == 0 for width in widths)]
    cp_list = [cp for cp in degrees if spec.training.seq_len % cp == 0]
    ep_list = divisors(spec.model.moe.n_experts) if spec.model.moe else [1]
    batches = divisors(spec.training.global_batch)
    lists = tp_list, cp_list, ep_list, batches, (0, 1)
    paths = _tensor_paths(clusters, tp_list)
    index = np.indices([len(values) for values in lists]).reshape(len(lists), -1)
    columns = [np.array(values)[at] for values, at in zip(lists, index, strict=True)]
    tp, cp, _, micro_batch, is_sequence = columns
    counts = [cluster.gpus for cluster in clusters]
    # With p <= L stages, a rank has at most tp x cp x p of as many parts of the batch.
    most = spec.training.global_batch * spec.model.n_layers * tp * cp
    may = (tp * cp <= max(counts)) & (micro_batch * min(counts) <= most)
    used = np.flatnonzero(may & ((tp > 1) | (is_sequence == 0)))
    columns = [column[used] for column in columns]
    whole_or_split = (False, True) if spec.pins.etp else (False,)
    # Where the host starts layers faster under ZeRO-2, that is the best case of some.
    zero_stages = (0, 2) if framework_of(spec).whole_layer_dispatch else (0,)
    paths = paths.take(index[0][used])
    tried = [
        _rows(columns, paths, is_split, zero)
        for is_split in whole_or_split
        for zero in zero_stages
    ]
    found = [
        mean_time_costs(job.at(name), rows)
        for name in spec.training.precisions
        for rows in tried
    ]
    forward_s = [total(costs.forward) for costs in found]
    layer_s = [total(added([costs.forward, costs.backward])) for costs in found]

    def table(ways: list[Floats]) -> Floats:
        """Return the least of some ways, as the columns of the table lie."""
        whole = np.full(index.shape[1], inf)
        whole[used] = np.min(ways, axis=0)
        return whole.reshape([len(values) for values in lists])

    return ComputeBound(
        spec.model,
        spec.training.global_batch,
        np.array(tp_list),
        np.array(cp_list),
        np.array(ep_list),
        np.array(batches),
        layer_s=table(layer_s),
        forward_s=table(forward_s),
        least_fill=float(LEAST_FILL.min()) if tries_v(spec) else 1.0,
    )


def _rows(
    columns: Sequence[Ints], paths: PathCosts, is_split: bool, zero: int
) -> Skeletons:
    """Return plain skeletons that split a layer so, in the best case for it.

    `is_split` says whether tensor parallelism splits experts, `zero` is ZeRO's stage.

    One stage lets CUDA graphs replay kernels, and several chunks let the messages of
    experts hide.
    """
    tp, cp, ep, micro_batch, is_sequence = columns
    ones = np.ones_like(tp)
    etp = tp if is_split else ones
    chosen = {
        "tp": tp,
        "cp": cp,
        # There are no fewer GPUs than experts are shared out over.
        "dp_replicate": ep,
        "ep": ep,
        "etp": etp,
        "micro_batch": micro_batch,
        "microbatches": ones,
        "vpp": 2 * ones,
        "zero": zero * ones,
        "sequence_parallel": is_sequence.astype(bool),
    }
    every: dict[str, Any] = plain_columns(len(tp)) | chosen
    return Skeletons(**every, paths=paths, mesh=0 * ones)


def _tensor_paths(clusters: Sequence[Cluster], degrees: Sequence[int]) -> PathCosts:
    """Return the least that groups of tensor parallelism pay on any of the clusters.

    All other groups pay nothing, nor do those on clusters that are no trees, where the
    least takes long to find.
    """
    paths = free_paths(len(degrees), len(GROUPS))
    if not all(cluster.is_tree for cluster in clusters):
        return paths
    tp = np.array(degrees)
    least = np.full((2, len(tp)), np.inf)
    for cluster in clusters:
        dividing = np.flatnonzero(cluster.gpus % tp == 0)
        found = build_fabric(cluster).least(tp[dividing])
        both = found.s_per_byte[:, RINGS], found.latency_s[:, RINGS]
        least[:, dividing] = np.minimum(least[:, dividing], both)
    paths.s_per_byte[:, TP], paths.latency_s[:, TP] = least
    return paths
