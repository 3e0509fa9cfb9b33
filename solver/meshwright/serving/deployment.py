"""Deployments: plans of serving without layers per stage, as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Columns, Floats, Ints
from meshwright.serving.job import ServingJob
from meshwright.spec.plan_fields import AXES
from meshwright.topology.groups import PP, TP, price_groups
from meshwright.topology.paths import Meshes


@dataclass(frozen=True)
class Deployments(Columns):
    """Columns of equal length, a deployment per row."""

    tp: Ints
    pp: Ints
    dp_replicate: Ints
    """Replicas: copies of the model that share the requests."""
    microbatches: Ints
    """Groups of requests that follow each other through the stages of a replica."""
    requests: Ints
    """In flight on the replica that has most."""
    mesh: Ints
    """Row of the mesh in its table."""
    tp_s_per_byte: Floats
    tp_latency_s: Floats
    pp_s_per_byte: Floats
    pp_latency_s: Floats

    @property
    def group(self) -> Ints:
        """Return the requests of the largest group."""
        return -(-self.requests // self.microbatches)


def on_meshes(job: ServingJob, meshes: Meshes, microbatches: Ints) -> Deployments:
    """Return a deployment on each mesh, with its requests in so many groups."""
    paths = price_groups(job.fabric, meshes)
    columns = dict(zip(AXES, meshes.prod(axis=2).T, strict=True))
    replicas = columns["dp_replicate"]
    return Deployments(
        tp=columns["tp"],
        pp=columns["pp"],
        dp_replicate=replicas,
        microbatches=microbatches,
        requests=-(-job.inference.batch // replicas),
        mesh=np.arange(len(meshes)),
        tp_s_per_byte=paths.s_per_byte[:, TP],
        tp_latency_s=paths.latency_s[:, TP],
        pp_s_per_byte=paths.s_per_byte[:, PP],
        pp_latency_s=paths.latency_s[:, PP],
    )
