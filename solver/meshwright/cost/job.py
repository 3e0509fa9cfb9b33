"""A job: a spec with what the cost formulas need, computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.frameworks.base.registry import context_exchange_of
from meshwright.plans.columns import Ints
from meshwright.spec.cluster import Cluster, StagedCluster
from meshwright.spec.gpu import Precision
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import EVEN, Exchange, Exchanges, Fabric, TokenExchange
from meshwright.topology.fabric_builder import build_fabric


@dataclass(frozen=True)
class Job:
    """A spec, the fabric of its cluster, and the efficiency of its kernels."""

    spec: Spec
    fabric: Fabric
    efficiency: Efficiency = field(default_factory=Efficiency)
    gpu_kinds: tuple[Job, ...] = ()
    """For each kind of GPU that stages lie on, in the order of the stages, the same job
    on GPUs of that kind alone; empty where all GPUs are of one kind."""

    def at(self, precision: Precision) -> Job:
        """Return the job with the precision fixed."""
        return replace(self, spec=self.spec.at(precision))

    def gpu_kind_of_stage(self, stages: int) -> Ints:
        """Return the index of the kind of GPU that each stage lies on, (stages,)."""
        cluster = self.spec.cluster
        if not isinstance(cluster, StagedCluster):
            return np.zeros(stages, dtype=np.int64)
        counts = cluster.stages_per_part(stages)
        return np.arange(len(counts)).repeat(counts)


def make_job(spec: Spec, efficiency: Efficiency | None = None) -> Job:
    """Return the job of a spec, at default efficiency if none is given."""
    fabric = build_fabric(spec.cluster, _exchanging(spec))
    return Job(spec, fabric, efficiency or Efficiency())


def _exchanging(spec: Spec) -> Exchanges:
    """Return the groups that send all to all under the framework of a spec."""
    is_ulysses = context_exchange_of(spec) == "ulysses"
    return (("ep", _expert_exchange(spec)), *([("cp", EVEN)] if is_ulysses else []))


def _expert_exchange(spec: Spec) -> Exchange:
    """Return how tokens get to their experts."""
    moe = spec.model.moe
    if moe is None or spec.training.expert_dispatch == "alltoall":
        return EVEN
    return TokenExchange(
        moe.n_experts, moe.top_k, moe.route_groups, moe.groups_per_token
    )


def make_mixed_job(spec: Spec, of_gpu: Callable[[str], Efficiency]) -> Job:
    """Return the job of a spec whose cluster may have several kinds of GPU.

    Its efficiency is the worst of all kinds. Where each stage lies on one part, the
    job of each kind comes too. `of_gpu` returns the efficiency of a GPU by its name.
    """
    cluster = spec.cluster
    parts = [part.topology for part in cluster.parts] or [cluster.topology]
    gpus = [topology.gpu.name for topology in parts]
    job = make_job(spec, reduce(Efficiency.worse, map(of_gpu, gpus)))
    if not isinstance(cluster, StagedCluster):
        return job
    kinds = []
    for topology in cluster.kinds:
        alone = spec.model_copy(update={"cluster": Cluster(topology=topology)})
        kinds.append(make_job(alone, of_gpu(topology.gpu.name)))
    return replace(job, gpu_kinds=tuple(kinds))
