"""A GPU as its vendor rates it, and the precisions: bytes and rates of each.

fp8 is as in NVIDIA's Transformer Engine and PyTorch's torchao. Matmuls of weights take
8-bit inputs and return 16 bits. The core of attention, everything between matmuls,
weights, gradients and messages stay in bf16.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field, model_validator

from meshwright.spec.base import (
    CountOrNone,
    Flag,
    Name,
    Peak,
    Positive,
    SpecModel,
    number,
)
from meshwright.spec.units import GBPerS, GiB

Precision = Literal["bf16", "fp16", "fp8", "tf32", "fp32"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""All precisions, in the order of their codes in columns."""


class PeakTflops(SpecModel):
    """Dense matmul peak by precision, TFLOP/s; left out where the GPU has none."""

    fp8: Peak | None = None
    bf16: Peak | None = None
    fp16: Peak | None = None
    tf32: Peak | None = None
    fp32: Peak | None = None

    @property
    def known(self) -> tuple[str, ...]:
        """Return the precisions that the GPU has a peak for."""
        return tuple(name for name, peak in self if peak is not None)

    def flops(self, precision: Precision) -> float:
        """Return a known peak in FLOP/s."""
        return float(getattr(self, precision)) * 1e12

    @model_validator(mode="after")
    def _check_any(self) -> PeakTflops:
        if self.fp8 is not None and self.bf16 is None:
            raise ValueError("expected a peak for bf16 beside fp8: attention has it")
        if not self.known:
            raise ValueError("expected a peak for one of bf16, fp16, tf32, fp32")
        return self


MatmulShare = Annotated[float, number("from 0.0001 to 1.5", lambda x: 1e-4 <= x <= 1.5)]


class Gpu(SpecModel):
    """One GPU, as its vendor rates it; bundled ones are in topologies/gpus."""

    name: Name = Field("inline", description="By which profiles know it.")
    memory_gib: GiB = Field(description="Memory that nvidia-smi reports as total.")
    memory_gb_s: GBPerS = Field(description="HBM bandwidth.")
    peak_tflops: PeakTflops
    matmul_share: MatmulShare = Field(
        0.8,
        description="Of the peak that the best measured matmul reaches; above 1 where "
        "clocks are above the rated one.",
    )
    matmul_share_fp8: MatmulShare = Field(0.72, description="The same of the fp8 peak.")
    grouped_matmul_share: MatmulShare | None = Field(
        None,
        description="The same of PyTorch's matmul of many experts in 16 bits, where it "
        "is slower than others.",
    )
    holds_clocks: Flag = Field(
        False,
        description="Whether training sustains the best matmul: GeForce cards sum in "
        "fp32 at half the rate of their tensor cores, and H20 has few of H100's, which "
        "draws less power; on others power and heat leave less.",
    )
    shared_memory_kib: Positive = Field(
        164,
        description="Shared memory of a multiprocessor; small ones hold narrower tiles "
        "of attention.",
    )
    peer_links: CountOrNone | None = Field(
        None, description="NVLinks or Infinity Fabric links of the GPU; 0 if none."
    )
    peer_link_gb_s: GBPerS | None = Field(
        None, description="Bandwidth of one of those per direction."
    )
    pcie_gb_s: GBPerS | None = Field(
        None, description="What copies over its PCIe port reach, per direction."
    )
    tdp_w: Positive | None = Field(None, description="Board power limit.")
    power_limit_w: Positive | None = Field(
        None, description="Power limit that is set below `tdp_w`; clocks fall with it."
    )
    shares_memory: Flag = Field(
        False,
        description="Whether the CPU has no memory but that of the GPU, which is none "
        "to offload to; such a GPU is no part that could be another.",
    )
    hour_usd: Positive | None = Field(
        None, description="A list price of one GPU for an hour, where one is public."
    )

    @property
    def power_w(self) -> float | None:
        """Return the power that the GPU takes at most, watts."""
        return self.power_limit_w or self.tdp_w

    @property
    def clock_share(self) -> float:
        """Return the share of its clock that the GPU keeps under its power limit.

        Power grows with the cube of the clock, since the voltage follows the clock
        (Mudge 2001, Power: A First-Class Architectural Design Constraint).
        """
        if self.power_limit_w is None or self.tdp_w is None:
            return 1.0
        return float((self.power_limit_w / self.tdp_w) ** (1 / 3))

    @model_validator(mode="after")
    def _check_power(self) -> Gpu:
        limit_w, most_w = self.power_limit_w, self.tdp_w
        if limit_w is None:
            return self
        if most_w is None:
            raise ValueError("power_limit_w: expected tdp_w beside it")
        if limit_w > most_w:
            told = f"power_limit_w: {limit_w:g}: expected at most tdp_w, {most_w:g}"
            raise ValueError(told)
        return self


class Format(NamedTuple):
    """One precision of training."""

    element: int
    """Bytes of an activation, of a weight in a matmul, of a number in a message."""
    core: Precision
    """Precision whose peak rate holds for attention, router and head."""
    is_mixed: bool
    """Whether an optimizer keeps fp32 weights beside those of `element` bytes."""


FORMATS: dict[Precision, Format] = {
    "fp8": Format(2, "bf16", is_mixed=True),
    "bf16": Format(2, "bf16", is_mixed=True),
    "fp16": Format(2, "fp16", is_mixed=True),
    "tf32": Format(4, "tf32", is_mixed=False),
    "fp32": Format(4, "fp32", is_mixed=False),
}

ELEMENT_BYTES = {precision: form.element for precision, form in FORMATS.items()}
