"""A spec of serving with everything that the formulas need, worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.cost.efficiency import Efficiency
from meshwright.cost.roofline import Machine
from meshwright.plans.precision import FORMATS
from meshwright.spec.inference import CachePrecision, Inference, WeightPrecision
from meshwright.spec.model import Model
from meshwright.spec.serving import ServingSpec
from meshwright.topology.fabric import Fabric
from meshwright.topology.fabric_builder import build_fabric

ACTIVATION_BYTES = 2
"""Of a number between matmuls, in a message, in a logit: 16 bits everywhere."""

SCALE_BYTES = 4
"""A 16-bit scale and zero point of each group of int4 weights (Lin et al. 2023, AWQ,
arXiv 2306.00978; Frantar et al. 2022, GPTQ, arXiv 2210.17323)."""

_WEIGHT_BYTES: dict[WeightPrecision, float] = {
    "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5,
}  # fmt: skip

_CACHE_BYTES: dict[CachePrecision, int] = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class ServingJob:
    """A spec of serving, its cluster compiled, and its GPU as kernels see it."""

    spec: ServingSpec
    fabric: Fabric
    machine: Machine

    @property
    def model(self) -> Model:
        """Return the shape of the model."""
        return self.spec.model

    @property
    def inference(self) -> Inference:
        """Return what is served."""
        return self.spec.inference

    def with_inference(self, **changes: object) -> ServingJob:
        """Return the job with something else to serve."""
        inference = self.inference.model_copy(update=changes)
        spec = self.spec.model_copy(update={"inference": inference})
        return replace(self, spec=spec)

    @property
    def matmul_flops(self) -> float:
        """Return what the best matmul of weights reaches, FLOP/s."""
        return self.machine.fp8_flops or self.machine.matmul_flops

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of a layer's weight with its share of a scale."""
        own = self.inference
        scales = SCALE_BYTES / own.weight_group if own.precision == "int4" else 0
        return _WEIGHT_BYTES[own.precision] + scales

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of a cached number."""
        return _CACHE_BYTES[self.inference.kv_precision or "bf16"]


def make_serving_job(
    spec: ServingSpec, efficiency: Efficiency | None = None
) -> ServingJob:
    """Return the job of a spec, at default efficiency unless told otherwise."""
    own = efficiency or Efficiency()
    return ServingJob(spec, build_fabric(spec.cluster), _machine(spec, own))


def _machine(spec: ServingSpec, efficiency: Efficiency) -> Machine:
    """Return the GPU; engines have kernels of attention written for it.

    vLLM and TensorRT-LLM take FlashAttention-3 and FlashInfer on Hopper, so that all
    of the peak is open to fused attention.
    """
    gpu, precision = spec.cluster.topology.gpu, spec.matmul_precision
    peaks = gpu.peak_tflops
    peak_flops = peaks.flops(FORMATS[precision].core)
    is_fp8 = precision == "fp8"
    return Machine(
        attention_flops=peak_flops,
        matmul_flops=peak_flops * gpu.matmul_share,
        memory_bytes_per_s=gpu.memory_gb_s * 1e9,
        element=ACTIVATION_BYTES,
        efficiency=efficiency,
        fp8_flops=peaks.flops("fp8") * gpu.matmul_share_fp8 if is_fp8 else None,
    )
