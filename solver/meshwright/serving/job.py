"""A serving spec with what the formulas need: its fabric and its GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.cost.job import Efficiency
from meshwright.cost.roofline import GpuRates
from meshwright.plans.precision import FORMATS
from meshwright.serving.engine import Engine
from meshwright.spec.model import Model
from meshwright.spec.serving import (
    CachePrecision,
    Inference,
    ServingSpec,
    WeightPrecision,
)
from meshwright.topology.fabric import Fabric
from meshwright.topology.fabric_builder import build_fabric

ACTIVATION_BYTES = 2
"""Bytes of a number between matmuls, in a message, in a logit: always 16 bits."""

SCALE_BYTES = 4
"""Bytes of the 16-bit scale and zero point of a group of int4 weights.

Lin et al. 2023, AWQ, arXiv 2306.00978; Frantar et al. 2022, GPTQ, arXiv 2210.17323.
"""

_WEIGHT_BYTES: dict[WeightPrecision, float] = {
    "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5,
}  # fmt: skip

_CACHE_BYTES: dict[CachePrecision, int] = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class ServingJob:
    """A serving spec, the fabric of its cluster, and its GPU as kernels see it."""

    spec: ServingSpec
    fabric: Fabric
    machine: GpuRates
    engine: Engine

    @property
    def model(self) -> Model:
        """Return the model of the spec."""
        return self.spec.model

    @property
    def inference(self) -> Inference:
        """Return the requests and precisions to serve."""
        return self.spec.inference

    def with_inference(self, **changes: object) -> ServingJob:
        """Return the job with some fields of `inference` changed."""
        inference = self.inference.model_copy(update=changes)
        spec = self.spec.model_copy(update={"inference": inference})
        return replace(self, spec=spec)

    @property
    def matmul_flops(self) -> float:
        """Return the rate that large matmuls of weights reach, FLOP/s."""
        return self.machine.fp8_flops or self.machine.matmul_flops

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of one weight of a layer, with its share of a scale."""
        precision, group = self.inference.precision, self.inference.weight_group
        scales = SCALE_BYTES / group if precision == "int4" else 0
        return _WEIGHT_BYTES[precision] + scales

    @property
    def read_bytes(self) -> float:
        """Return the bytes that a matmul could read in the time it takes per weight.

        Weights of int8 and int4 are unpacked to 16 bits between memory and matmul.
        """
        is_unpacked = self.inference.precision in ("int8", "int4")
        return self.weight_bytes + is_unpacked * self.engine.unpack_bytes

    @property
    def host_s(self) -> float:
        """Return the seconds of the host between passes, for which the GPU waits."""
        return 0.0 if self.inference.overlap_host else self.engine.pass_s

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of one number in the cache."""
        return _CACHE_BYTES[self.inference.kv_precision or "bf16"]


def make_serving_job(spec: ServingSpec, engine: Engine | None = None) -> ServingJob:
    """Return the job of a spec, with the engine's default numbers unless told."""
    engine = engine or Engine()
    machine = _machine(spec, Efficiency(memory=engine.memory))
    return ServingJob(spec, build_fabric(spec.cluster), machine, engine)


def _machine(spec: ServingSpec, efficiency: Efficiency) -> GpuRates:
    """Return the GPU as the kernels of a serving engine see it.

    Engines have attention kernels written for the GPU: vLLM and TensorRT-LLM use
    FlashAttention-3 and FlashInfer on Hopper, so fused attention has the whole peak.
    """
    gpu, precision = spec.cluster.topology.gpu, spec.matmul_precision
    peaks, clock = gpu.peak_tflops, gpu.clock_share
    peak_flops = peaks.flops(FORMATS[precision].core) * clock
    fp8_flops = peaks.flops("fp8") * clock if peaks.fp8 is not None else 0.0
    is_fp8 = precision == "fp8"
    return GpuRates(
        attention_flops=peak_flops,
        matmul_flops=peak_flops * gpu.matmul_share,
        memory_bytes_per_s=gpu.memory_gb_s * 1e9,
        element=ACTIVATION_BYTES,
        efficiency=efficiency,
        fp8_flops=fp8_flops * gpu.matmul_share_fp8 if is_fp8 else None,
    )
