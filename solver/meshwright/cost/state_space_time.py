"""Seconds of a state-space mixer on one GPU, and the tensors that it saves."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.cost.roofline import Work
from meshwright.cost.saved import Layer, Saved
from meshwright.cost.state_space import scan_macs
from meshwright.plans.columns import Floats
from meshwright.spec.model_parts import StateSpace

FP32_BYTES = 4

STATE_PASSES = 4
"""Times that the state of a chunk is moved: written, read and written as it is passed
on, and read by the scan (mamba_ssm 2.2, ops/triton/ssd_combined.py)."""

BACKWARD_SCANS = 3
"""Seconds of a scan's backward over its forward: states are computed again, and the
gradients of both inputs of every matmul (same file, _mamba_chunk_scan_combined_bwd)."""


class StateSpaceSeconds(NamedTuple):
    """Seconds of one layer's state space."""

    matmuls_s: Floats
    """The projections, forward."""
    streams_s: Floats
    """The convolution and the gated norm, forward."""
    core: tuple[Floats, Floats]
    """The scan, forward and backward."""


def state_space_seconds(work: Work, mixer: StateSpace) -> StateSpaceSeconds:
    """Return the seconds of projections, convolution, scan and norm."""
    gpu, tp, tokens = work.gpu, work.shards.tp, work.tokens
    matmuls_s = gpu.linear_s(tokens, mixer.input_width / tp, work.model.d_model)
    matmuls_s = matmuls_s + gpu.linear_s(tokens, work.model.d_model, mixer.inner / tp)
    # The norm reads the result and its gate.
    streams_s = gpu.stream_s(2 * tokens * mixer.conv_width / tp)
    streams_s = streams_s + gpu.stream_s(3 * tokens * mixer.inner / tp)
    forward_s = _scan_s(work, mixer)
    return StateSpaceSeconds(
        matmuls_s, streams_s, (forward_s, BACKWARD_SCANS * forward_s)
    )


def _scan_s(work: Work, mixer: StateSpace) -> Floats:
    """Return the seconds of a scan in chunks: its matmuls, or the bytes that they move.

    Inputs are read for the states and again for the results. States, one per chunk,
    and scores inside chunks are moved in fp32.
    """
    wide = FP32_BYTES / work.gpu.element
    states = STATE_PASSES * wide * mixer.inner * mixer.state_dim / mixer.chunk
    scores = 2 * wide * mixer.groups * mixer.chunk
    moved = 2 * mixer.conv_width + mixer.inner + states + scores
    flops = 2 * scan_macs(mixer, is_causal=False) * work.tokens / work.shards.tp
    return work.gpu.attention_s(flops, moved * work.tokens / work.shards.tp)


def saved_state_space(layer: Layer, mixer: StateSpace) -> list[Saved]:
    """Return what a state space saves for its backward.

    The fused kernel of Mamba-2 keeps the result of the first projection and that of the
    scan, and computes the convolution and the states again (mamba_ssm 2.2,
    ops/triton/ssd_combined.py: MambaSplitConv1dScanCombinedFn). A delta net also keeps
    the result of the convolution, and an inverse as wide as a chunk for every head
    (flash-linear-attention 0.3, ops/gated_delta_rule/chunk.py). The norm and the last
    projection save their inputs.
    """
    tensors = [
        layer.saved("state-space input", mixer.input_width, "tensor"),
        layer.saved("scan result", mixer.inner, "tensor"),
        layer.saved("state-space norm input", mixer.inner, "tensor"),
        Saved(
            "state-space output", layer.matmul_input("o_proj") * mixer.inner, "tensor"
        ),
    ]
    if mixer.form == "delta_net":
        inverse = mixer.n_heads * mixer.chunk
        tensors.append(layer.saved("delta rule", mixer.conv_width + inverse, "tensor"))
    return tensors
