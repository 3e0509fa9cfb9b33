"""No framework's limits: what any plan could reach with the best of all code bases.

Its plans keep the rules that every plan keeps, and offload nothing that they could
shard and do not; whatever one framework fuses, drops or reads at full speed, it does
too. A solve under it says what a framework costs.
"""

from __future__ import annotations

from meshwright.frameworks.base.framework import CONTEXT_GIB, Framework
from meshwright.frameworks.base.mixed_precision import mixed_precision_state
from meshwright.frameworks.base.shared_rules import OFFLOADS_WHAT_IS_SHARDED
from meshwright.plans.skeletons import GRADIENTS, OPTIMIZER, PARAMETERS

FRAMEWORK = Framework(
    title="no framework's limits",
    mixed_state=mixed_precision_state,
    plan_rules=(OFFLOADS_WHAT_IS_SHARDED,),
    offloads=(OPTIMIZER, GRADIENTS, PARAMETERS),
    fused_kernels="all",
    has_fused_loss=True,
    overhead_gib=CONTEXT_GIB,
    prefetched_params=0.0,
    pads_vocabulary=True,
    has_native_attention=True,
)
