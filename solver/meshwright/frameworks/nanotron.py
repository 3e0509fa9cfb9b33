"""Nanotron 0.4 (huggingface/nanotron, commit 2411b02 of April 2026)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.shared_rules import NO_HYBRID_SHARDING, NO_INTERLEAVING
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import (
    KEEPS_ALL,
    ONE_F_ONE_B,
    SELECTIVE,
    ZERO_BUBBLE_H1,
)
from meshwright.spec.training import Training

DEGREE_RULES = (
    Rule(
        "kv_heads_divisible",
        "tp divides the KV heads",
        "Nanotron 0.4 models/llama.py: CausalSelfAttention",
        lambda spec, rows: spec.model.n_kv_heads % rows.tp == 0,
        "{spec.model.n_kv_heads} KV heads mod tp {tp} = {spec.model.n_kv_heads % tp}",
    ),
    replace(NO_HYBRID_SHARDING, source="Nanotron 0.4 helpers.py: ZeRO over dp_pg"),
)

PLAN_RULES = (
    Rule(
        "zero_supported",
        "ZeRO is 0, or 1 where gradients are not added up in fp32",
        "Nanotron 0.4 optim/zero.py: stage 1; optim/gradient_accumulator.py: "
        "get_fp32_accum_hook has no reduce-scatter",
        lambda spec, rows: (
            (rows.zero == 0)
            | ((rows.zero == 1) & np.bool_(spec.training.gradients == "bf16"))
        ),
        "zero {zero}",
    ),
    Rule(
        "expert_parallel_supported",
        "no expert parallelism",
        "Nanotron 0.4 models/qwen.py: _dispatch_tokens sends nothing to other GPUs",
        lambda spec, rows: rows.ep == 1,
        "ep {ep}",
    ),
    Rule(
        "recompute_supported",
        "layers are recomputed whole or not at all",
        "Nanotron 0.4 config/parallelism_config.py: recompute_layer",
        lambda spec, rows: rows.recompute != SELECTIVE,
        "recompute {recompute}",
    ),
    Rule(
        "schedule_supported",
        "the pipeline schedule is 1F1B or GPipe",
        "Nanotron 0.4 config/parallelism_config.py: pp_engine is 1f1b or afab",
        lambda spec, rows: rows.schedule != ZERO_BUBBLE_H1,
        "schedule {schedule}, pp {pp}",
    ),
    replace(
        NO_INTERLEAVING,
        source="Nanotron 0.4 parallel/pipeline_parallel/engine.py: a stage per rank",
    ),
    Rule(
        "microbatches_fill_pipeline",
        "under 1F1B there are as many micro-batches as stages, or one less",
        "Nanotron 0.4 parallel/pipeline_parallel/engine.py: "
        "OneForwardOneBackwardPipelineEngine",
        lambda spec, rows: (
            (rows.schedule != ONE_F_ONE_B) | (rows.microbatches >= rows.pp - 1)
        ),
        "{microbatches} micro-batches, pp {pp}",
    ),
    Rule(
        "offload_supported",
        "nothing is offloaded",
        "Nanotron 0.4 config/config.py: OptimizerArgs has no such setting",
        lambda spec, rows: rows.offload == KEEPS_ALL,
        "offload {offload}",
    ),
)


def _state(training: Training, moments: float) -> StateBytes:
    """Return the state of a parameter under PyTorch's DistributedDataParallel.

    Gradients have 2 bytes, and 2 more in DDP's buckets (trainer.py, `init_model`, does
    not ask for `gradient_as_bucket_view`). fp32 sums beside them are whole at any ZeRO
    stage and all-reduced, and the optimizer keeps fp32 weights
    (optim/gradient_accumulator.py, `FP32GradientAccumulator`). Without the sums
    (`accumulate_grad_in_fp32` false) it updates 16-bit weights, and PyTorch keeps
    moments in 16 bits too.
    """
    if training.gradients == "bf16":
        return StateBytes(2, 4, moments / 2, 2, 2)
    return StateBytes(2, 4, 4 + moments, 2, 4, main_gradients=4)


FRAMEWORK = Framework(
    title="Nanotron",
    mixed_state=_state,
    degree_rules=DEGREE_RULES,
    plan_rules=PLAN_RULES,
    # an fp32 copy, and the same less its maximum, which becomes the softmax in place
    # (parallel/tensor_parallel/functional.py, `_ShardedCrossEntropy`)
    loss_bytes=8,
    published_as=("nanotron",),
)
