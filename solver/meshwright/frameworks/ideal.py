"""No framework's limits: what a plan could reach with the best of all code bases.

Plans keep only the universal rules, and shard what they offload if they can. Whatever
some framework fuses, drops or runs at full speed, this one does too. The difference of
a solve under it is the cost of a framework.
"""

from __future__ import annotations

from meshwright.frameworks.base.framework import (
    ALL_FUSED,
    ALL_OVERLAP,
    CONTEXT_GIB,
    Framework,
    Selective,
)
from meshwright.frameworks.base.shared import (
    BALANCED_CONTEXT,
    FROZEN_WEIGHTS,
    OFFLOADS_WHAT_IS_SHARDED,
    STATE_OPTIONS,
    TRAINED_ENDS,
    mixed_precision_state,
)
from meshwright.plans.skeletons import ALL_MODULES, CHEAP
from meshwright.spec.plan_fields import GRADIENTS, OPTIMIZER, PARAMETERS
from meshwright.spec.training import MATRIX_OPTIMIZERS

FRAMEWORK = Framework(
    title="no framework's limits",
    mixed_state=mixed_precision_state,
    degree_rules=(BALANCED_CONTEXT,),
    plan_rules=(OFFLOADS_WHAT_IS_SHARDED,),
    has_no_sync=True,
    state_options=STATE_OPTIONS,
    has_deepep=True,
    has_mtp=True,
    has_reference=True,
    stores_fp8_inputs=True,
    partitions_activations=True,
    on_host=frozenset({"offload_activations"}),
    matrix_optimizers=MATRIX_OPTIMIZERS,
    frozen_weights=FROZEN_WEIGHTS,
    trained_ends=TRAINED_ENDS,
    offloads=(OPTIMIZER, GRADIENTS, PARAMETERS),
    selective=Selective(ALL_MODULES, unnamed=CHEAP),
    splits_experts=True,
    has_segments=True,
    has_uneven_chunks=True,
    fused=ALL_FUSED,
    overlap=ALL_OVERLAP,
    joins_norms=True,
    overhead_gib=CONTEXT_GIB,
    prefetched_params=0.0,
    pads_vocabulary=True,
    bucket_params=5e8,  # the most that a framework sends at once
    newer_attention="cudnn",
)
