"""The rules that serving adds to the shared ones: name, sentence, source and test."""

from __future__ import annotations

import numpy as np

from meshwright.frameworks.base.shared import KV_HEADS_REPEATED
from meshwright.plans.rule import RuleOf
from meshwright.rules.pins import field_pins, mesh_pins, stage_pins
from meshwright.rules.universal import (
    HEADS_DIVISIBLE,
    LAYERS_COVER_STAGES,
    tp_link,
)
from meshwright.serving.deployment import Deployments
from meshwright.spec.plan_fields import FIELD, Pins
from meshwright.spec.serving import PINS, ServingSpec
from meshwright.topology.fabric import Meshes

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
