"""A spec with everything that the formulas need, worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from meshwright.cost.efficiency import Efficiency
from meshwright.plans.columns import Ints
from meshwright.spec.cluster import Cluster, StagedCluster
from meshwright.spec.gpu import Precision
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import Fabric
from meshwright.topology.fabric_builder import build_fabric


@dataclass(frozen=True)
class Job:
    """A spec, its cluster compiled, and how efficient its kernels are taken to be."""

    spec: Spec
    fabric: Fabric
    efficiency: Efficiency = field(default_factory=Efficiency)
    kinds: tuple[Job, ...] = ()
    """The same job as if all GPUs were of one kind, for each kind that stages lie on,
    in the order of the stages; empty where all GPUs are alike."""

    def at(self, precision: Precision) -> Job:
        """Return the job with one precision decided."""
        return replace(self, spec=self.spec.at(precision))

    def kind_of_stage(self, stages: int) -> Ints:
        """Return which kind of GPU each stage lies on, (stages,)."""
        cluster = self.spec.cluster
        if not isinstance(cluster, StagedCluster):
            return np.zeros(stages, dtype=np.int64)
        counts = cluster.stages_per_part(stages)
        return np.arange(len(counts)).repeat(counts)


def make_job(spec: Spec, efficiency: Efficiency | None = None) -> Job:
    """Return the job of a spec, at default efficiency unless told otherwise."""
    return Job(spec, build_fabric(spec.cluster), efficiency or Efficiency())


def make_mixed_job(spec: Spec, of_gpu: Callable[[str], Efficiency]) -> Job:
    """Return the job of a cluster of parts: as slow as its slowest GPUs.

    Where stages lie on parts, each is priced by its own kind too. `of_gpu` tells how
    efficient kernels are on a GPU, by its name.
    """
    cluster = spec.cluster
    parts = [part.topology for part in cluster.parts] or [cluster.topology]
    gpus = [topology.gpu.name for topology in parts]
    job = make_job(spec, reduce(Efficiency.worse, map(of_gpu, gpus)))
    if not isinstance(cluster, StagedCluster):
        return job
    kinds = []
    for topology in cluster.kinds:
        own = spec.model_copy(update={"cluster": Cluster(topology=topology)})
        kinds.append(make_job(own, of_gpu(topology.gpu.name)))
    return replace(job, kinds=tuple(kinds))
