"""Tells whether one matmul fits, how fast it can be, and how to cut it."""

from __future__ import annotations

import numpy as np

from meshwright.cost.efficiency import Efficiency
from meshwright.cost.roofline import machine_of
from meshwright.economics.gemm_memory import Matmul, needed, overhead, training
from meshwright.economics.gemm_splits import splits
from meshwright.results.gemm import Roofline, Told
from meshwright.spec.gpu import Gpu
from meshwright.spec.units import GIB


def answer(
    own: Matmul, gpu: Gpu | None, memory_gib: float, headroom: float, gpus: int | None
) -> Told:
    """Return the answer for a GPU, or for so much memory of one that is not named.

    `headroom` is the share of the memory that stays free; `gpus` asks for splits over
    so many, None for those that are needed.
    """
    memory = round(memory_gib * GIB)
    usable = int(memory * (1 - headroom))
    held = needed(own)
    fits = held <= usable
    is_split = gpus is not None or not fits
    return Told(
        m=own.m,
        k=own.k,
        n=own.n,
        dtype=own.dtype,
        gpu=gpu.name if gpu else "",
        fits=fits,
        bytes=own.bytes,
        overhead=overhead(own),
        needed=held,
        budget="memory" if own.context else "usable",
        memory=memory,
        headroom=headroom,
        usable=usable,
        training=training(own, usable),
        roofline=roofline(own, gpu) if gpu else None,
        splits=tuple(splits(own, usable, gpus)) if is_split else (),
    )


def roofline(own: Matmul, gpu: Gpu) -> Roofline:
    """Return how fast a matmul can be on a GPU (Williams et al. 2009, 'Roofline')."""
    flops = 2.0 * own.m * own.k * own.n
    moved = own.bytes.a + own.bytes.w + own.bytes.y
    peak, memory = gpu.peak_tflops.flops(own.dtype), gpu.memory_gb_s * 1e9
    machine = machine_of(gpu, own.dtype, Efficiency())
    sizes = (np.array([float(size)]) for size in (own.m, own.n, own.k))
    return Roofline(
        flops=flops,
        moved_bytes=moved,
        intensity=flops / moved,
        ridge=peak / memory,
        side="compute" if flops / moved >= peak / memory else "memory",
        bound_s=max(flops / peak, moved / memory),
        expected_s=float(machine.linear_s(*sizes)[0]),
    )
