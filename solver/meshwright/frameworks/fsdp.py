"""PyTorch FSDP by itself, as accelerate runs it."""

from __future__ import annotations

from meshwright.frameworks.base.framework import FEW_GROUPS_OVERHEAD_GIB, Framework
from meshwright.frameworks.base.fully_shard import fully_shard_state
from meshwright.frameworks.base.recompute_scope import all_layers
from meshwright.frameworks.base.small_state import FROZEN_WEIGHTS
from meshwright.frameworks.limits import fsdp as limits
from meshwright.plans.skeletons import PARAMETERS

FRAMEWORK = Framework(
    title="PyTorch FSDP",
    mixed_state=fully_shard_state,
    frozen_weights=FROZEN_WEIGHTS,  # accelerate's fsdp_utils.py, with PEFT
    degree_rules=limits.DEGREE_RULES,
    plan_rules=limits.PLAN_RULES,
    own_words=limits.OWN_WORDS,
    offloads=(PARAMETERS,),
    full_scope=all_layers(f"{limits.VERSION} utils/fsdp_utils.py: fsdp2_apply_ac"),
    has_plain_norm=True,
    overhead_gib=FEW_GROUPS_OVERHEAD_GIB,
    has_cast_weights=True,
    # flash-attention trains fp32 parameters under autocast, one replica per GPU
    layer_dispatch=2.0,  # hooks before and after each layer
    published_as=("fsdp", "flash-attention"),
)
