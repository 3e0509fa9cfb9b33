"""Every deployment of a cluster: degrees, where they lie, groups of requests."""

from __future__ import annotations

import numpy as np

from meshwright.lattice.degrees import enumerate_degrees
from meshwright.lattice.mesh_enumeration import enumerate_meshes
from meshwright.plans.columns import Ints
from meshwright.serving.deployment import Deployments, on_meshes
from meshwright.serving.job import ServingJob
from meshwright.spec.pins import AXES
from meshwright.topology.fabric import Meshes

IDLE_AXES = [AXES.index("cp"), AXES.index("dp_shard")]
"""Axes of a mesh that serving does not use."""


def enumerate_deployments(job: ServingJob) -> tuple[Deployments, Meshes]:
    """Return every deployment, and the meshes that its rows point into.

    Preferred ones come first: few stages, narrow tensor parallelism, few groups.
    """
    sizes = job.fabric.sizes
    degrees, _ = enumerate_degrees(sizes)
    degrees = degrees[(degrees[:, IDLE_AXES] == 1).all(axis=1)]
    meshes = np.concatenate([enumerate_meshes(sizes, own) for own in degrees])
    rows = on_meshes(job, meshes, np.ones(len(meshes), dtype=np.int64))
    counts = [group_counts(own) for own in rows.requests.tolist()]
    index = np.repeat(np.arange(len(rows)), [len(own) for own in counts])
    rows = rows.take(index)
    rows.microbatches[:] = np.concatenate(counts)
    keys = (rows.mesh, rows.microbatches, rows.tp, rows.pp)
    return rows.take(np.lexsort(keys)), meshes


def group_counts(requests: int) -> Ints:
    """Return the numbers of groups worth a look: the least of each group size."""
    counts = np.arange(1, requests + 1)
    _, first = np.unique(-(-requests // counts), return_index=True)
    return np.sort(counts[first])
