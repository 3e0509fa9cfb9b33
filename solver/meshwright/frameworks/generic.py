"""No framework in particular: the mathematics of parallel training alone.

Its plans keep the rules that every plan keeps, and offload nothing that they could
shard and do not; its code is plain PyTorch. Runs of a code base of which nothing is
known are priced as this.
"""

from __future__ import annotations

from meshwright.frameworks.base.framework import Framework
from meshwright.frameworks.base.mixed_precision import mixed_precision_state
from meshwright.frameworks.base.shared_rules import OFFLOADS_WHAT_IS_SHARDED
from meshwright.plans.skeletons import GRADIENTS, OPTIMIZER, PARAMETERS

FRAMEWORK = Framework(
    title="any framework",
    mixed_state=mixed_precision_state,
    plan_rules=(OFFLOADS_WHAT_IS_SHARDED,),
    offloads=(OPTIMIZER, GRADIENTS, PARAMETERS),
)
