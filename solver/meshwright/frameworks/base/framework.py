"""A framework: all that sets it apart from the mathematics of parallel training.

A field with a default need not be given: it is what PyTorch does by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.plans.rule import Rule
from meshwright.spec.training import FusedKernels, Training

CONTEXT_GIB = 1.1
"""Memory that CUDA takes with its kernels: the least that `overhead_gib` holds."""

MANY_GROUPS_OVERHEAD_GIB = 3.0
FEW_GROUPS_OVERHEAD_GIB = 1.5
"""CUDA context (1.1 to 1.5 GiB with its kernels) and 0.25 to 0.4 GiB of buffers per
communicator: one or two for FSDP, about eight axes of ranks where pipelines and tensors
are split too, and DeepSpeed's two buckets of 5e8 elements."""

EAGER_LOSS_BYTES = 12
"""Bytes per logit of a cross-entropy out of single operations, at its peak.

Megatron-LM's, which its forks for DeepSpeed have: an fp32 copy, the same less its
maximum, and the exponentials. PyTorch's, in the backward: the logarithms they saved,
the gradient of those, and that of the fp32 copy."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter before sharding, and what crosses the links."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Weights as matmuls and ZeRO-3 all-gathers see them."""
    reduced: float
    """Gradients as reduce-scatters and all-reduces see them."""
    main_gradients: float = 0.0
    """fp32 sums beside the gradients, which ZeRO shards from stage 2 on never has."""
    copied: float = 0.0
    """Copies of gradients that the update makes where there are no such sums, and
    what it computes with them; sharded as the optimizer is."""

    @property
    def total(self) -> float:
        """Return the bytes per parameter without sharding, outside the update."""
        return self.weights + self.gradients + self.optimizer

    @property
    def updated(self) -> float:
        """Return what an update moves: state read and written, gradients read."""
        return 2 * (self.optimizer + self.weights) + self.gradients


@dataclass(frozen=True)
class Selective:
    """What selective recomputation means to a framework."""

    frees: frozenset[str]
    """Names, in `cost.activations`, of the tensors that a layer does not keep."""
    matmul_share: float = 0.0
    """Share of a layer's forward matmuls that run again, beside norms and activations.
    """
    repeats_attention: bool = False
    """Whether the core of attention runs again."""


@dataclass(frozen=True)
class Framework:
    """What one training framework does differently from the others."""

    title: str
    """The framework's name as its authors write it."""
    mixed_state: Callable[[Training, float], StateBytes]
    """State of a parameter in mixed precision, from the job and the optimizer's bytes
    beside the weight."""
    degree_rules: tuple[Rule, ...] = ()
    """Rules on degrees, beside those that every plan keeps."""
    plan_rules: tuple[Rule, ...] = ()
    """Rules on whole skeletons, beside those that every plan keeps."""
    offloads: tuple[int, ...] = ()
    """Codes of what it moves to host memory at all; its rules say when."""
    fused_kernels: FusedKernels = "norms"
    """What is one kernel unless a spec says otherwise. PyTorch has norms from 2.9 on
    where nothing is compiled (`torch.nn.functional.rms_norm` on GPUs)."""
    has_fused_loss: bool = False
    """Whether cross-entropy is one kernel unless a spec says otherwise."""
    loss_bytes: int = EAGER_LOSS_BYTES
    """Bytes per logit of the loss at its peak where it is not one kernel."""
    selective: Selective | None = None
    """What selective recomputation does; None for what `cost.activations` says."""
    overhead_gib: float = MANY_GROUPS_OVERHEAD_GIB
    """CUDA context and the buffers of communicators on each GPU, GiB."""
    prefetched_params: float = math.inf
    """Most parameters that ZeRO-3 gathers ahead; all of the next layer if infinite
    (PyTorch FSDP, `backward_prefetch`)."""
    has_cast_weights: bool = False
    """Whether the weights in use are a cast copy of fp32 parameters."""
    has_separate_gradients: bool = False
    """Whether a layer's gradients wait in the compute precision to be added to those
    of the step, at every ZeRO stage."""
    keeps_stage_outputs: bool = False
    """Whether the pipeline holds what a stage has sent on until its backward."""
    keeps_fp8_copies: bool = False
    """Whether fp8 is Transformer Engine's, which keeps what it casts.

    Of an input it casts two copies, as stored and transposed, which Hopper's 8-bit
    matmuls need for gradients of weights; it saves one of them and drops the other
    (transformer_engine/pytorch/module/linear.py, `update_usage`). Of a weight it keeps
    both from one micro-batch to the next (`is_first_microbatch`). torchao saves inputs
    in 16 bits and casts them again (torchao/float8/float8_linear.py).
    """
    pads_vocabulary: bool = False
    """Whether the vocabulary is padded to what tensor cores read at full speed."""
    has_native_attention: bool = False
    """Whether fused attention is written for each GPU, as Transformer Engine's is;
    otherwise it is FlashAttention-2, which keeps to A100's instructions."""
    published_as: tuple[str, ...] = ()
    """Words in lower case by which publications name it, or a code base like it."""
    sequence_parallel_since: str | None = None
    """Date from which runs are taken to have sequence parallelism beside tensor
    parallelism, where nothing is said; empty for always, None for never."""
    has_tuned_chunks: bool = False
    """Whether runs that leave out the micro-batch are taken to have chunks of one
    layer."""
    counts_ends_as_layers: bool = True
    """Whether embedding and head count as a layer each where layers do not divide."""
