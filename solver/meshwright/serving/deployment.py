"""Deployments: serving plans without their split of layers, as numpy columns.

The rules that they keep are shared ones, and those that serving adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.frameworks.base.shared import KV_HEADS_REPEATED
from meshwright.plans.columns import Columns, Floats, Ints
from meshwright.plans.rule import RuleOf
from meshwright.rules.pins import field_pins, mesh_pins, stage_pins
from meshwright.rules.universal import (
    HEADS_DIVISIBLE,
    LAYERS_COVER_STAGES,
    tp_link,
)
from meshwright.serving.job import ServingJob
from meshwright.spec.plan_fields import AXES, FIELD, Pins
from meshwright.spec.serving import PINS, ServingSpec
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


ServingRule = RuleOf[ServingSpec, Deployments]


def serving_rules(spec: ServingSpec, meshes: Meshes) -> list[ServingRule]:
    """Return the rules of a spec, its pins last; rows index the table `meshes`."""
    limits = [TP_LINK] if spec.limits.tp_min_link_gb_s is not None else []
    return [*RULES, *limits, *_pins(spec.pins, meshes)]


RULES = (
    HEADS_DIVISIBLE,
    KV_HEADS_REPEATED,
    ServingRule(
        "mlp_divisible",
        "tp divides the inner width of MLP and experts",
        "vLLM, layers/linear.py: divide",
        lambda spec, rows: np.asarray(
            (spec.model.d_ff % rows.tp == 0)
            & ((spec.model.moe.d_ff if spec.model.moe else 0) % rows.tp == 0)
        ),
        "d_ff {spec.model.d_ff}, tp {tp}",
    ),
    LAYERS_COVER_STAGES,
    ServingRule(
        "whole_patterns",
        "a model with several kinds of layers is served without a pipeline",
        "prices of layers are means over all of them",
        lambda spec, rows: (rows.pp == 1) | np.bool_(not spec.model.pattern),
        "pp {pp}",
    ),
    ServingRule(
        "groups_have_requests",
        "every group has a request",
        "the definition of a group",
        lambda _spec, rows: rows.microbatches <= rows.requests,
        "{microbatches} groups, {requests} requests",
    ),
)


TP_LINK: ServingRule = tp_link(lambda rows: rows.tp_s_per_byte)


def _pins(pins: Pins, meshes: Meshes) -> list[ServingRule]:
    fields = field_pins(pins, FIELD.keys() & {*PINS})
    return [*fields, *stage_pins({"layers": pins.layers}), *mesh_pins(pins, meshes)]
