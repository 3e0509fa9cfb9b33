"""Rates of fused kernels of attention, by kernel, GPU, heads and length of sequence."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.cost.roofline import Work
from meshwright.frameworks.base.registry import A100_TFLOPS, attention_kernel_of
from meshwright.plans.columns import Floats
from meshwright.plans.precision import FORMATS


class Kernel(NamedTuple):
    """How fast a kernel is where its heads are 128 wide and sequences are long."""

    share: float
    """Its rate over that of FlashAttention-2 on A100, as shares of the peak."""
    narrow: float
    """Width of a head that halves the rate of infinitely wide ones."""
    is_for_a100: bool = False
    """Whether it uses only instructions of A100."""


KERNELS = {
    # 1 / 1.7 of the rate of version 2 at best, and no faster with wide heads (Dao 2023,
    # FlashAttention-2, section 4.1 and figures 4 to 6)
    "flash1": Kernel(share=0.55, narrow=0, is_for_a100=True),
    # 1 / 1.3 to 1 / 2.5 of it (there); the kernels of 2023
    "triton": Kernel(share=0.67, narrow=0, is_for_a100=True),
    # On H100 335 TFLOP/s forward of 616 of version 3; 299 with heads 64 wide (Shah et
    # al. 2024, FlashAttention-3, figure 5); on B200 no more (tritonbench, 171)
    "flash2": Kernel(share=1.0, narrow=18, is_for_a100=True),
    # 616 of 989 TFLOP/s forward on H100, 473 with narrow heads (there)
    "flash3": Kernel(share=1.13, narrow=50),
    # 1,418 of 2,250 TFLOP/s forward on B200 (flash-attention, 2280)
    "flash4": Kernel(share=1.19, narrow=50),
    # 539 and 388 TFLOP/s on H100 (Shah et al. 2024, figure 5); on B200 1,112 of 2,250
    # (SimuMax, b200_bf16_ceperm.json)
    "cudnn": Kernel(share=1.0, narrow=50),
}

A100_SHARE = 0.63
"""Share of H100's peak that the instructions of A100 reach (Luo et al. 2024,
'Benchmarking and dissecting the Nvidia Hopper GPU architecture', mma against wgmma)."""

MOST_A100_FLOPS = A100_SHARE * 989e12
"""What they reach on H100. Faster GPUs run them no faster: on B200 FlashAttention-2 has
360 TFLOP/s forward, on H100 370."""

HALF_LENGTH = 300
"""Tokens of a sequence at which a causal kernel reaches half of the rate of long ones:
blocks on the diagonal are half wasted, and few blocks start and end slowly. On H100
1,024 tokens reach 0.69 (version 3) to 0.78 (version 2) of what 16,384 do, 4,096 tokens
0.94 to 0.96 (Shah et al. 2024, figure 5)."""

USUAL_WIDTH = 128


def attention_share(work: Work, length: Floats) -> Floats:
    """Return the rate of the spec's kernel over that of the best on long sequences.

    `length` is that of the sequences which the kernel gets.
    """
    kernel = KERNELS[attention_kernel_of(work.spec)]
    width = min(work.model.head_dim, USUAL_WIDTH)
    wide = width / (width + kernel.narrow)
    usual = USUAL_WIDTH / (USUAL_WIDTH + kernel.narrow)
    share = kernel.share * wide / usual * _instructions(work, kernel)
    return share * length / (length + HALF_LENGTH)


def _instructions(work: Work, kernel: Kernel) -> float:
    """Return the share of the GPU's peak that the instructions of a kernel reach."""
    training, gpu = work.spec.training, work.spec.cluster.topology.gpu
    peak_flops = gpu.peak_tflops.flops(FORMATS[training.precision].core)
    if not kernel.is_for_a100:
        return 1.0
    # A GPU of a higher peak runs the same instructions no slower.
    reached = min(max(A100_TFLOPS * 1e12, A100_SHARE * peak_flops), MOST_A100_FLOPS)
    return min(1.0, reached / peak_flops)
