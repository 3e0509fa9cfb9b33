"""Whether one matmul fits on a GPU, how fast it can be, and how to split it."""

from __future__ import annotations

import numpy as np

from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.roofline import gpu_rates
from meshwright.economics.gemm_memory import Matmul, needed, overhead, training
from meshwright.economics.gemm_splits import splits
from meshwright.results.gemm import GemmAnswer, Roofline
from meshwright.spec.gpu import Gpu
from meshwright.spec.units import GIB


def answer(
    matmul: Matmul,
    gpu: Gpu | None,
    memory_gib: float,
    headroom: float,
    gpus: int | None,
) -> GemmAnswer:
    """Return the answer for a named GPU, or for this much memory of any GPU.

    `headroom` is the share of the memory that stays free. `gpus` asks for splits over
    that many GPUs; with None, the matmul is split only if it does not fit on one.
    """
    memory = round(memory_gib * GIB)
    usable = int(memory * (1 - headroom))
    held = needed(matmul)
    fits = held <= usable
    is_split = gpus is not None or not fits
    return GemmAnswer(
        m=matmul.m,
        k=matmul.k,
        n=matmul.n,
        dtype=matmul.dtype,
        gpu=gpu.name if gpu else "",
        fits=fits,
        bytes=matmul.bytes,
        overhead=overhead(matmul),
        needed=held,
        budget="memory" if matmul.context else "usable",
        memory=memory,
        headroom=headroom,
        usable=usable,
        training=training(matmul, usable),
        roofline=roofline(matmul, gpu) if gpu else None,
        splits=tuple(splits(matmul, usable, gpus)) if is_split else (),
    )


def roofline(matmul: Matmul, gpu: Gpu) -> Roofline:
    """Return how fast a matmul can be on a GPU (Williams et al. 2009, 'Roofline')."""
    flops = 2.0 * matmul.m * matmul.k * matmul.n
    moved = matmul.bytes.a + matmul.bytes.w + matmul.bytes.y
    peak, memory = gpu.peak_tflops.flops(matmul.dtype), gpu.memory_gb_s * 1e9
    machine = gpu_rates(gpu, matmul.dtype, Efficiency())
    sizes = (np.array([float(size)]) for size in (matmul.m, matmul.n, matmul.k))
    return Roofline(
        flops=flops,
        moved_bytes=moved,
        intensity=flops / moved,
        ridge=peak / memory,
        side="compute" if flops / moved >= peak / memory else "memory",
        bound_s=max(flops / peak, moved / memory),
        expected_s=float(machine.linear_s(*sizes)[0]),
    )
