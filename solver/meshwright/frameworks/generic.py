"""No framework in particular: the mathematics of parallel training alone.

Plans keep only the universal rules, and shard what they offload if they can. Code is
plain PyTorch. Published runs of an unknown code base are priced under this framework.
"""

from __future__ import annotations

from meshwright.frameworks.base.framework import (
    FEW_GROUPS_OVERHEAD_GIB,
    Framework,
    Lever,
    Selective,
)
from meshwright.frameworks.base.shared import (
    BALANCED_CONTEXT,
    FROZEN_WEIGHTS,
    NO_MODULES_NAMED,
    OFFLOADS_WHAT_IS_SHARDED,
    SCRIPT_LEVERS,
    STATE_OPTIONS,
    TRAINED_ENDS,
    mixed_precision_state,
)
from meshwright.plans.skeletons import CHEAP
from meshwright.spec.plan_fields import GRADIENTS, OPTIMIZER, PARAMETERS
from meshwright.spec.training import MATRIX_OPTIMIZERS

FRAMEWORK = Framework(
    title="any framework",
    mixed_state=mixed_precision_state,
    levers=(
        *SCRIPT_LEVERS,
        Lever(
            "gradients",
            ("bf16",),
            "gradients in 16 bits",
            "Rajbhandari et al. 2019, ZeRO, section 3.1",
            "rounding",
        ),
    ),
    degree_rules=(BALANCED_CONTEXT,),
    plan_rules=(NO_MODULES_NAMED, OFFLOADS_WHAT_IS_SHARDED),
    has_no_sync=True,
    state_options=STATE_OPTIONS,
    has_deepep=True,
    has_mtp=True,
    has_reference=True,
    stores_fp8_inputs=True,
    keeps_fp8_inputs=True,
    data_parallel_overhead_gib=FEW_GROUPS_OVERHEAD_GIB,
    partitions_activations=True,
    on_host=frozenset({"offload_activations"}),
    matrix_optimizers=MATRIX_OPTIMIZERS,
    frozen_weights=FROZEN_WEIGHTS,
    trained_ends=TRAINED_ENDS,
    offloads=(OPTIMIZER, GRADIENTS, PARAMETERS),
    selective=Selective(unnamed=CHEAP),
    has_plain_norm=True,
    makes_gradients_late=True,
    layer_dispatch=2.0,  # norms and rotary positions are some 25 kernels more
    has_uneven_chunks=True,
)
