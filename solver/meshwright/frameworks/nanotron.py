"""Nanotron 0.4 (huggingface/nanotron, commit 2411b02 of April 2026)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.frameworks.base.framework import (
    Framework,
    Lever,
    LossPeak,
    Partition,
    StateBytes,
    all_layers,
)
from meshwright.frameworks.base.shared import (
    BALANCED_CONTEXT,
    NO_EXPERT_PARALLELISM,
    NO_HYBRID_SHARDING,
    NO_INTERLEAVING,
    NO_OFFLOAD,
    WHOLE_KV_HEADS,
    WHOLE_LAYERS_RECOMPUTED,
)
from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import ONE_F_ONE_B, ZERO_BUBBLE_H1
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

VERSION = "Nanotron 0.4, 2411b02"
ENGINE = f"{VERSION} parallel/pipeline_parallel/engine.py"


def _may_shard(spec: Spec, rows: Skeletons) -> Bools:
    sums_in_16_bits = np.bool_(spec.training.gradients == "bf16")
    return np.asarray(
        (rows.zero == 0) | ((rows.zero == 1) & (rows.cp == 1) & sums_in_16_bits)
    )


DEGREE_RULES = (
    replace(
        WHOLE_KV_HEADS,
        source=f"{VERSION} models/llama.py: CausalSelfAttention",
        fails_with="Number of key/value heads (…) must be divisible by TP size (…).",
    ),
    replace(
        BALANCED_CONTEXT,
        source=f"{VERSION} models/qwen.py: Qwen2Model",
        fails_with="Sequence length … must be divisible by … when using llama3 ring "
        "attention",
    ),
    replace(NO_HYBRID_SHARDING, source=f"{VERSION} helpers.py: ZeRO over dp_pg"),
)

PLAN_RULES = (
    Rule(
        "zero_supported",
        "ZeRO is 0, or 1 where gradients are not added up in fp32 and cp = 1",
        f"{VERSION} optim/zero.py: stage 1, over dp_pg without cp; "
        "optim/gradient_accumulator.py: get_fp32_accum_hook has no reduce-scatter",
        _may_shard,
        "zero {zero}, cp {cp}",
    ),
    replace(
        NO_EXPERT_PARALLELISM,
        source=f"{VERSION} nn/moe.py: tokens are sent to no other GPU",
    ),
    replace(
        WHOLE_LAYERS_RECOMPUTED,
        source=f"{VERSION} config/parallelism_config.py: recompute_layer",
    ),
    Rule(
        "schedule_supported",
        "the pipeline schedule is 1F1B or GPipe",
        f"{VERSION} config/parallelism_config.py: pp_engine is 1f1b or afab",
        lambda spec, rows: rows.schedule != ZERO_BUBBLE_H1,
        "pp {pp}",
    ),
    replace(NO_INTERLEAVING, source=f"{ENGINE}: a stage per rank"),
    Rule(
        "microbatches_fill_pipeline",
        "under 1F1B there are as many micro-batches as stages, or one less",
        f"{ENGINE}: OneForwardOneBackwardPipelineEngine",
        lambda spec, rows: (
            (rows.schedule != ONE_F_ONE_B) | (rows.microbatches >= rows.pp - 1)
        ),
        "{microbatches} micro-batches, pp {pp}",
        fails_with="Number of microbatches (…) must be at least PP_SIZE-1=… when using "
        "the OneForwardOneBackwardPipelineEngine",
    ),
    replace(
        NO_OFFLOAD,
        source=f"{VERSION} config/config.py: OptimizerArgs has no such setting",
    ),
)


def _balanced(model: Model, stages: int) -> list[int]:
    """Return the layers of each stage, the head counted by its matmul beside layers.

    A stage takes blocks until their cost, from the first on, is above its share.
    """
    width = model.d_model
    attention = 4 * model.n_heads * (width // model.n_heads)
    layer = (attention + 3 * model.d_ff) * width
    whole = model.n_layers * layer + model.vocab * width
    counts, stage = [0] * stages, 0
    for block in range(1, model.n_layers + 1):
        counts[stage] += 1
        stage += block * layer > whole * ((stage + 1) / stages)
    return counts


PARTITION = Partition(
    _balanced,
    "stages are balanced by the matmuls of layers and head",
    "Nanotron 0.4 models/base.py: build_model; models/llama.py: "
    "get_block_compute_costs",
)


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter under PyTorch's DistributedDataParallel.

    fp32 sums of gradients are whole at any ZeRO stage and all-reduced, and the
    optimizer keeps fp32 weights. Gradients in 16 bits come while activations go, and
    are dropped after each backward (optim/gradient_accumulator.py,
    `FP32GradientAccumulator._accumulate_grad`), so that they are not there at the peak.
    Without the sums (`accumulate_grad_in_fp32` false) they stay, 2 bytes and 2 more in
    DDP's buckets (trainer.py, `init_model`, does not ask for
    `gradient_as_bucket_view`); it updates 16-bit weights, and PyTorch keeps moments in
    16 bits too.
    """
    if training.gradients == "bf16":
        return StateBytes(2, 4, moments / 2, 2, 2)
    return StateBytes(2, 0, 4 + moments, 2, 4, main_gradients=4)


FRAMEWORK = Framework(
    title="Nanotron",
    kin="megatron",
    mixed_state=_state,
    levers=(
        Lever(
            "gradients",
            ("bf16",),
            "optimizer.accumulate_grad_in_fp32: false",
            f"{VERSION} trainer.py: init_model; optim/gradient_accumulator.py",
            "rounding",
        ),
    ),
    degree_rules=(*DEGREE_RULES, PARTITION.rule),
    plan_rules=PLAN_RULES,
    # an fp32 copy, and the same less its maximum, which becomes the softmax in place
    # (parallel/tensor_parallel/functional.py, `_ShardedCrossEntropy`)
    loss=LossPeak(8, 8),
    partition=PARTITION,
    full_scope=all_layers(f"{VERSION} config/parallelism_config.py: recompute_layer"),
    layer_dispatch=2.0,  # Nanotron's autograd functions
    # DDP's hook reduces beside the backward (optim/gradient_accumulator.py:
    # `get_fp32_accum_hook`); weights are gathered after the update (optim/zero.py)
    overlap=frozenset({"gradients"}),
    published_as=("nanotron",),
)
