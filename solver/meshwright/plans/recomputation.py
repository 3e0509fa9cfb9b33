"""The parts of a layer that selective recomputation repeats, as bits.

A row names modules (`spec.plan_fields`), or it names none and repeats what its
framework repeats by itself. Each tensor and each kernel of a layer knows the bits of
which any one frees or repeats it.
"""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import BIT, MODULES, SELECTIVE, SETS

CORE_ATTN = BIT["core_attn"]
LAYERNORM = BIT["layernorm"]
MLA_UP_PROJ = BIT["mla_up_proj"]
MOE_ACT = BIT["moe_act"]
MOE = BIT["moe"]
SHARED_EXPERTS = BIT["shared_experts"]
MLP = BIT["mlp"]

ALL_MODULES = sum(BIT.values())

CHEAP = 1 << len(MODULES)
"""The core of plain attention; with fused attention, the norms before matmuls and the
activation functions (Korthikanti et al. 2022, section 5, and what is left of it)."""

PER_OP = CHEAP << 1
"""All but attention, most collectives and every other matmul: see
`cost.activations`."""

SET_BITS: Ints = np.array(SETS)
"""The bits of each code of the column `recompute_modules`."""


def repeated_bits(rows: Skeletons, unnamed: int) -> Ints:
    """Return the parts that a recomputed layer repeats; 0 unless selectively.

    `unnamed` is what a row repeats that names no modules.
    """
    named = SET_BITS[rows.recompute_modules]
    repeated = np.where(named > 0, named, unnamed)
    return np.asarray(np.where(rows.recompute == SELECTIVE, repeated, 0))
