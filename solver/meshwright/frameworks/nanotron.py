"""Nanotron 0.4 (huggingface/nanotron, commit 2411b02 of April 2026)."""

from __future__ import annotations

from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.partition import Partition
from meshwright.frameworks.base.recompute_scope import all_layers
from meshwright.frameworks.limits import nanotron as limits
from meshwright.spec.model import Model
from meshwright.spec.training import Training


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
    degree_rules=(*limits.DEGREE_RULES, PARTITION.rule),
    plan_rules=limits.PLAN_RULES,
    # an fp32 copy, and the same less its maximum, which becomes the softmax in place
    # (parallel/tensor_parallel/functional.py, `_ShardedCrossEntropy`)
    loss_bytes=8,
    partition=PARTITION,
    full_scope=all_layers(
        f"{limits.VERSION} config/parallelism_config.py: recompute_layer"
    ),
    layer_dispatch=2.0,  # functions of its own
    published_as=("nanotron",),
)
