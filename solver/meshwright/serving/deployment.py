"""Deployments: serving plans without their split of layers, as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Columns, Floats, Ints
from meshwright.serving.job import ServingJob
from meshwright.spec.plan_fields import AXES
from meshwright.topology.fabric import Meshes
from meshwright.topology.groups import PP, TP, price_groups


@dataclass(frozen=True)
class Deployments(Columns):
    """Columns of equal length, one row for each deployment."""

    tp: Ints
    pp: Ints
    dp_replicate: Ints
    """Replicas: copies of the model that share the requests."""
    microbatches: Ints
    """Groups of requests that follow each other through the stages of a replica."""
    requests: Ints
    """Requests in flight on the busiest replica."""
    mesh: Ints
    """Index of the mesh in the table of meshes."""
    tp_s_per_byte: Floats
    tp_latency_s: Floats
    pp_s_per_byte: Floats
    pp_latency_s: Floats

    @property
    def group_size(self) -> Ints:
        """Return the number of requests in the largest group."""
        return -(-self.requests // self.microbatches)


def on_meshes(job: ServingJob, meshes: Meshes, microbatches: Ints) -> Deployments:
    """Return one deployment on each mesh, with its number of groups of requests."""
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
