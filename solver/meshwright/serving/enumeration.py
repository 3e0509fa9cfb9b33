"""Lists every deployment of a cluster: degrees, meshes, groups of requests."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.search.degrees import enumerate_degrees, enumerate_meshes
from meshwright.serving.deployment import Deployments, on_meshes
from meshwright.serving.job import ServingJob
from meshwright.spec.plan_fields import AXES
from meshwright.topology.fabric import Meshes

IDLE_AXES = [AXES.index("cp"), AXES.index("dp_shard")]
"""Axes of a mesh that serving does not use."""


def enumerate_deployments(job: ServingJob) -> tuple[Deployments, Meshes]:
    """Return every deployment, and the table of meshes that its rows index.

    The preferred ones come first: few stages, low tensor parallelism, few groups.
    """
    sizes = job.fabric.sizes
    degrees, _ = enumerate_degrees(sizes)
    degrees = degrees[(degrees[:, IDLE_AXES] == 1).all(axis=1)]
    meshes = np.concatenate([enumerate_meshes(sizes, axes) for axes in degrees])
    rows = on_meshes(job, meshes, np.ones(len(meshes), dtype=np.int64))
    counts = [group_counts(requests) for requests in rows.requests.tolist()]
    index = np.repeat(np.arange(len(rows)), [len(groups) for groups in counts])
    rows = rows.take(index)
    rows.microbatches[:] = np.concatenate(counts)
    keys = (rows.mesh, rows.microbatches, rows.tp, rows.pp)
    return rows.take(np.lexsort(keys)), meshes


def group_counts(requests: int) -> Ints:
    """Return the numbers of groups to try: for each group size, the least number."""
    counts = np.arange(1, requests + 1)
    _, first = np.unique(-(-requests // counts), return_index=True)
    return np.sort(counts[first])
