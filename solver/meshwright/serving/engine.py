"""The share of its rating that a GPU reaches in an engine, and the host's part.

Training has numbers of its own (`Efficiency`): its element-wise kernels stream other
tensors than the matrix-vector products of decoding, and its host waits elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """Numbers of serving engines; by default as fitted to published tables.

    `python -m benchmarks.serving.fit` fits `memory`, `pass_s` and `reread` to the 132
    throughputs of `benchmarks/serving`, and judges every source by a fit to the others.
    """

    memory: float = 0.78
    """Share of memory bandwidth in kernels that read weights or the cache."""

    pass_s: float = 1e-3
    """Seconds of the host between two passes, for which the GPU waits: it takes the
    sampled tokens, ends and starts requests, and launches the next pass."""

    unpack_bytes: float = 0.42
    """Bytes that memory could move while a GPU unpacks one int8 or int4 weight."""

    reread: float = 1.75
    """Rate at which a kernel rereads the cache for each query head, most of it from
    the L2 cache, in units of the rate of memory."""

    layer_s: float = 2e-4
    """Seconds of the host to launch a layer of a prefill: 25 kernels at 8 us each.

    Prefills of any length come in, so that they are not replayed as CUDA graphs."""


ESTIMATED = Engine(memory=0.85, pass_s=1e-3, unpack_bytes=0.42, reread=2.5)
"""The numbers without any fit.

Copies reach 80-90 % of memory bandwidth. A millisecond between passes is an estimate:
vLLM 0.5 spent 29 % of the time of Llama 3 8B on H100 on scheduling (vLLM blog,
September 2024, v0.6.0). Two instructions a weight, at 64 lanes of 108 multiprocessors
and 1.41 GHz, take as long as 0.42 bytes at 2.04 TB/s (NVIDIA A100 whitepaper). An L2
cache that is read 2.5 times as fast as memory is an estimate.
"""
