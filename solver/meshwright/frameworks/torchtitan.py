"""torchtitan; also used for MaxText and Paxml: XLA shards parameters the same way."""

from __future__ import annotations

from meshwright.frameworks.base.framework import (
    FEW_GROUPS_OVERHEAD_GIB,
    Framework,
    Selective,
)
from meshwright.frameworks.base.fully_shard import fully_shard_state
from meshwright.frameworks.base.recompute_scope import all_layers
from meshwright.frameworks.limits import torchtitan as limits
from meshwright.plans.recomputation import PER_OP
from meshwright.plans.skeletons import PARAMETERS

WRAPS_EVERY_BLOCK = all_layers(
    f"{limits.VERSION} distributed/activation_checkpoint.py: apply wraps every block"
)

FRAMEWORK = Framework(
    title="torchtitan",
    mixed_state=fully_shard_state,
    degree_rules=limits.DEGREE_RULES,
    plan_rules=limits.PLAN_RULES,
    own_words=limits.OWN_WORDS,
    context_exchanges=("gather",),
    offloads=(PARAMETERS,),
    selective=Selective(unnamed=PER_OP),
    has_uneven_chunks=True,  # `module_fqns_per_model_part`
    selective_scope=WRAPS_EVERY_BLOCK,
    full_scope=WRAPS_EVERY_BLOCK,
    loss_bytes=10,  # as PyTorch's, less the logit itself, which is dropped before
    loss_chunks=8,  # components/loss.py, `ChunkedLossWrapper`
    shards_gradients_after_pipeline=True,
    has_plain_norm=True,
    overhead_gib=FEW_GROUPS_OVERHEAD_GIB,
    has_cast_weights=True,
    kernels="fsdp",  # PyTorch's, as plain FSDP runs
    # XLA shards fp32 parameters and gathers a bf16 copy of each layer, as FSDP does
    has_cuda_graphs=True,  # `training.disable_cuda_graphs` is false
    layer_dispatch=2.0,  # hooks before and after each layer
    published_as=("torchtitan", "maxtext", "paxml"),
    sequence_parallel_since="",
)
