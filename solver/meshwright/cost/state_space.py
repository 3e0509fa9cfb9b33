"""Parameters and FLOPs of a state-space mixer: Mamba-2, or a gated delta net.

Tensor parallelism splits heads, and groups with them, so that every matrix and vector
is split (megatron-core 0.19.2 ssm/mamba_mixer.py and ssm/gated_delta_net).
"""

from __future__ import annotations

from meshwright.spec.model_parts import StateSpace


def matrix_params(mixer: StateSpace, d_model: int) -> int:
    """Return the weights of the two projections, in and out."""
    return d_model * (mixer.input_width + mixer.inner)


def vector_params(mixer: StateSpace) -> int:
    """Return the other parameters: convolution, decays, and the norm of the output.

    Mamba-2 has a decay, a bias of the step and a skip per head, and a norm over all
    heads; a delta net has the first two, and a norm over one head.
    """
    convolution = mixer.conv_width * (mixer.conv + mixer.conv_bias)
    if mixer.form == "mamba2":
        return convolution + 3 * mixer.n_heads + mixer.inner
    return convolution + 2 * mixer.n_heads + mixer.head_dim


def scan_macs(mixer: StateSpace, is_causal: bool) -> float:
    """Return the multiply-adds per token between the projections.

    Inside a chunk of Q tokens scores are C B, (Q x N) per group, and results scores
    times x, (Q x P) per head; between chunks states are B x, and results C times states
    (Dao and Gu 2024, arXiv 2405.21060, section 6). A delta net also multiplies keys
    with keys, and the inverse of what it gets with keys and values (Yang et al. 2024,
    arXiv 2412.06464, section 3.3; its heads each have keys). With `is_causal` a token
    sees half a chunk, which is what the mathematics needs; kernels compute all of it.
    """
    seen = mixer.chunk / 2 if is_causal else float(mixer.chunk)
    heads, state, width = mixer.n_heads, mixer.state_dim, mixer.head_dim
    states = 2 * heads * width * state
    convolution = mixer.conv * mixer.conv_width
    if mixer.form == "mamba2":
        inside = seen * (mixer.groups * state + heads * width)
    else:
        inside = seen * heads * (3 * state + 2 * width)
    return inside + states + convolution
