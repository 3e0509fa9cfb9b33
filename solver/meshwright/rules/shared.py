"""The rules that training and serving share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.plans.columns import Bools, Floats
from meshwright.plans.rule import Degrees, R, RuleOf
from meshwright.spec.serving import Question

Shared = RuleOf[Question, Degrees]

HEADS_DIVISIBLE = Shared(
    "heads_divisible",
    "tp divides the query heads",
    "Shoeybi et al. 2019, Megatron-LM, section 3; vLLM config/model.py: "
    "verify_with_parallel_config",
    lambda spec, rows: spec.model.n_heads % rows.tp == 0,
    "{spec.model.n_heads} heads mod tp {tp} = {spec.model.n_heads % tp}",
    is_inherited=True,
)

LAYERS_COVER_STAGES = Shared(
    "layers_cover_stages",
    "every pipeline stage has a layer, and the first all that lead",
    "stages without layers are not modelled; vLLM distributed/utils.py: get_pp_indices",
    lambda spec, rows: (
        rows.pp - 1 + max(spec.model.leading_layers, 1) <= spec.model.n_layers
    ),
    "pp {pp} for {spec.model.n_layers} layers",
    is_inherited=True,
)


def tp_link(s_per_byte: Callable[[R], Floats]) -> RuleOf[Question, R]:
    """Return the rule on links of TP; `s_per_byte` is what TP groups pay."""

    def is_fast(spec: Question, rows: R) -> Bools:
        least = spec.limits.tp_min_link_gb_s or 0.0
        # A link exactly at the limit is fast enough, however its reciprocal rounds.
        return np.asarray(s_per_byte(rows) * least * 1e9 <= 1 + 1e-9)

    return RuleOf(
        "tp_link_bandwidth",
        "every tensor-parallel GPU has limits.tp_min_link_gb_s to itself",
        "the spec",
        is_fast,
        "tp {tp}, limit {spec.limits.tp_min_link_gb_s:g} GB/s",
    )
