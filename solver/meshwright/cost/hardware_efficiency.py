"""Efficiency: the share of its rating that hardware reaches in practice.

The defaults come from published microbenchmarks, the same for every GPU and framework;
`meshwright calibrate` fits them to measured runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import Field

from meshwright.spec.base import SpecModel


def _number(default: float, least: float, most: float, meaning: str) -> float:
    number: float = Field(
        default, ge=least, le=most, allow_inf_nan=False, description=meaning
    )
    return number


class Efficiency(SpecModel):
    """Factors between the data sheet and real kernels and collectives.

    Calibration keeps to the limits of each factor.
    """

    gemm: float = _number(
        0.90, 0.2, 1.1, "Share of the best measured matmul that training sustains."
    )
    """The best is the GPU's `matmul_share`; power and heat leave less for long."""

    gemm_half_size: float = _number(
        96.0,
        1.0,
        2_000.0,
        "Size of one matmul dimension that halves its rate.",
    )
    """A smooth stand-in for tiles of 128 that are partly filled."""

    attention: float = _number(
        0.55, 0.05, 1.0, "Share of the dense peak of fused attention."
    )
    """50-73 % on A100 (Dao 2023, FlashAttention-2, section 4.1)."""

    memory: float = _number(
        0.85,
        0.05,
        1.0,
        "Share of memory bandwidth in element-wise kernels.",
    )
    """80-90 % in copies; less where a framework does not fuse what is counted fused."""

    launch_s: float = _number(4e-6, 1e-7, 1e-3, "Least seconds of one kernel.")

    dispatch_s: float = _number(
        2e-4, 1e-6, 1e-2, "Host seconds to dispatch a layer's forward; backward twice."
    )
    """Some 25 kernels at 8 us each in eager PyTorch: small layers wait for the host."""

    microbatch_s: float = _number(
        5e-4,
        1e-5,
        3e-2,
        "Host seconds per micro-batch, half at each end.",
    )
    """Batch, masks, positions, loss and its scaling."""

    link: float = _number(0.80, 0.1, 1.0, "Share of a link's rate in collectives.")
    """230-240 of 300 GB/s NVLink bus bandwidth over 8 A100 in nccl-tests."""

    latency: float = _number(1.0, 0.1, 20.0, "Factor on the latency of links.")

    grad_overlap: float = _number(
        0.70, 0.01, 1.0, "Share of gradient traffic that may hide behind the backward."
    )

    gather_overlap: float = _number(
        0.80, 0.01, 1.0, "Share of ZeRO-3 weight traffic that may hide behind compute."
    )

    tp_overlap: float = _number(
        0.5,
        0.01,
        1.0,
        "Share of tensor-parallel traffic that may hide behind the matmuls beside it.",
    )
    """Pieces of a matmul are slower than the whole, and copies take part of the GPU."""

    def times(self, factors: Mapping[str, float]) -> Efficiency:
        """Return every number times its factor, within its limits."""
        scaled = {}
        for name, value in self.model_dump().items():
            least, most = _limits()[name]
            scaled[name] = min(max(value * factors.get(name, 1.0), least), most)
        return Efficiency(**scaled)

    def slowed(self, factor: float) -> Efficiency:
        """Return the efficiency at which everything takes longer by a factor."""
        slower = {**dict.fromkeys(_TIMES, factor), **dict.fromkeys(_RATES, 1 / factor)}
        return self.times(slower)

    def worse(self, other: Efficiency) -> Efficiency:
        """Return the slower of two in every number."""
        pairs = self.model_dump(), other.model_dump()
        return Efficiency(
            **{
                name: (max if name in _COSTS else min)(value, pairs[1][name])
                for name, value in pairs[0].items()
            }
        )


_COSTS = ("gemm_half_size", "launch_s", "dispatch_s", "microbatch_s", "latency")
"""Numbers of which smaller is better."""

_RATES = ("gemm", "attention", "memory", "link")
"""Shares of rates."""

_TIMES = ("launch_s", "dispatch_s", "microbatch_s", "latency")
"""Seconds, and a factor on them."""


@cache
def _limits() -> dict[str, tuple[float, float]]:
    """Return the limits of each number."""
    fields = Efficiency.model_json_schema()["properties"]
    return {
        name: (field["minimum"], field["maximum"]) for name, field in fields.items()
    }
