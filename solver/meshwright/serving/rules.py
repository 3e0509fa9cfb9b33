"""The rules of serving, as data: name, sentence, source, test; pins are rules too."""

from __future__ import annotations

import numpy as np

from meshwright.cost.arrays import Bools
from meshwright.pin_rules import mesh_pins, range_pins, stage_pins
from meshwright.rule import RuleOf
from meshwright.serving.deployment import Deployments
from meshwright.spec.pins import Pins
from meshwright.spec.serving import ServingSpec
from meshwright.topology.paths import Meshes

ServingRule = RuleOf[ServingSpec, Deployments]


def serving_rules(spec: ServingSpec, meshes: Meshes) -> list[ServingRule]:
    """Return the rules that apply to a spec, pins last; rows point into `meshes`."""
    limits = [TP_LINK] if spec.limits.tp_min_link_gb_s is not None else []
    return [*RULES, *limits, *_pins(spec.pins, meshes)]


RULES = (
    ServingRule(
        "heads_divisible",
        "tp divides the query heads",
        "vLLM, config/model.py: verify_with_parallel_config",
        lambda spec, rows: spec.model.n_heads % rows.tp == 0,
        "{spec.model.n_heads} heads, tp {tp}",
    ),
    ServingRule(
        "kv_heads_divisible",
        "tp divides the KV heads, or is a multiple of them (they are repeated)",
        "vLLM, models/llama.py: LlamaAttention",
        lambda spec, rows: (
            (spec.model.n_kv_heads % rows.tp == 0)
            | (rows.tp % spec.model.n_kv_heads == 0)
        ),
        "{spec.model.n_kv_heads} KV heads, tp {tp}",
    ),
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
    ServingRule(
        "layers_cover_stages",
        "every pipeline stage has a layer, and the first all that lead",
        "vLLM, distributed/utils.py: get_pp_indices",
        lambda spec, rows: (
            rows.pp - 1 + max(spec.model.first_dense_layers, 1) <= spec.model.n_layers
        ),
        "{spec.model.n_layers} layers, pp {pp}",
    ),
    ServingRule(
        "groups_have_requests",
        "every group has a request",
        "the definition of a group",
        lambda _spec, rows: rows.microbatches <= rows.requests,
        "{microbatches} groups",
    ),
)


def _tp_link_is_fast(spec: ServingSpec, rows: Deployments) -> Bools:
    least = spec.limits.tp_min_link_gb_s or 0.0
    return np.asarray(rows.tp_s_per_byte * least * 1e9 <= 1 + 1e-9)


TP_LINK = ServingRule(
    "tp_link_bandwidth",
    "every tensor-parallel GPU has limits.tp_min_link_gb_s to itself",
    "the spec",
    _tp_link_is_fast,
    "tp {tp}, limit {spec.limits.tp_min_link_gb_s:g} GB/s",
)


def _pins(pins: Pins, meshes: Meshes) -> list[ServingRule]:
    ranges = range_pins(pins, ("tp", "pp", "dp_replicate", "microbatches"))
    return [*ranges, *stage_pins({"layers": pins.layers}), *mesh_pins(pins, meshes)]
