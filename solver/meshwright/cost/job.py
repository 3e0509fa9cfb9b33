"""A job: a spec with what the cost formulas need, computed once.

Part of it is `Efficiency`: the share of its rating that hardware reaches in practice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, reduce

import numpy as np
from pydantic import Field

from meshwright.frameworks.base.registry import context_exchange_of
from meshwright.plans.columns import Ints
from meshwright.spec.base import SpecModel
from meshwright.spec.cluster import Cluster, StagedCluster
from meshwright.spec.gpu import Precision
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import EVEN, Exchange, Exchanges, Fabric, TokenExchange
from meshwright.topology.routed_fabric import build_fabric


def _number(default: float, least: float, most: float, meaning: str) -> float:
    number: float = Field(
        default, ge=least, le=most, allow_inf_nan=False, description=meaning
    )
    return number


SUSTAINED = 0.90
"""Share of the best measured matmul that training sustains where power binds."""


class Efficiency(SpecModel):
    """Factors between the data sheet and real kernels and collectives.

    Calibration keeps to the limits of each factor.
    """

    gemm: float = _number(
        SUSTAINED, 0.2, 1.1, "Share of the best measured matmul that training sustains."
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

    older_attention: float = _number(
        0.55,
        0.05,
        1.0,
        "The same of attention on Blackwell with A100's instructions, of the peak that "
        "they have on H100.",
    )
    """What power does to kernels of Blackwell does not touch it."""

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
        for name, value in self:
            least, most = _limits()[name]
            scaled[name] = min(max(value * factors.get(name, 1.0), least), most)
        return Efficiency(**scaled)

    def slowed(self, factor: float) -> Efficiency:
        """Return the efficiency at which everything takes longer by a factor."""
        slower = {**dict.fromkeys(_TIMES, factor), **dict.fromkeys(_RATES, 1 / factor)}
        return self.times(slower)

    def worse(self, other: Efficiency) -> Efficiency:
        """Return the slower of two in every number."""
        return Efficiency(
            **{
                name: (max if name in _COSTS else min)(value, getattr(other, name))
                for name, value in self
            }
        )


_COSTS = ("gemm_half_size", "launch_s", "dispatch_s", "microbatch_s", "latency")
"""Numbers of which smaller is better."""

_RATES = ("gemm", "attention", "older_attention", "memory", "link")
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


@dataclass(frozen=True)
class Job:
    """A spec, the fabric of its cluster, and the efficiency of its kernels."""

    spec: Spec
    fabric: Fabric
    efficiency: Efficiency = field(default_factory=Efficiency)
    gpu_kinds: tuple[Job, ...] = ()
    """For each kind of GPU that stages lie on, in the order of the stages, the same job
    on GPUs of that kind alone; empty where all GPUs are of one kind."""

    def at(self, precision: Precision) -> Job:
        """Return the job with the precision fixed."""
        decided = self.spec.at(precision)
        return self if decided is self.spec else replace(self, spec=decided)

    def gpu_kind_of_stage(self, stages: int) -> Ints:
        """Return the index of the kind of GPU that each stage lies on, (stages,)."""
        cluster = self.spec.cluster
        if not isinstance(cluster, StagedCluster):
            return np.zeros(stages, dtype=np.int64)
        counts = cluster.stages_per_part(stages)
        return np.arange(len(counts)).repeat(counts)


def make_job(spec: Spec, efficiency: Efficiency | None = None) -> Job:
    """Return the job of a spec, at default efficiency if none is given."""
    fabric = build_fabric(spec.cluster, _exchanging(spec))
    return Job(spec, fabric, efficiency or Efficiency())


def _exchanging(spec: Spec) -> Exchanges:
    """Return the groups that send all to all under the framework of a spec."""
    is_ulysses = context_exchange_of(spec) == "ulysses"
    return (("ep", expert_exchange(spec)), *([("cp", EVEN)] if is_ulysses else []))


def expert_exchange(spec: Spec) -> Exchange:
    """Return how tokens get to their experts."""
    moe = spec.model.moe
    if moe is None or spec.training.expert_dispatch == "alltoall":
        return EVEN
    return TokenExchange(
        moe.n_experts, moe.top_k, moe.route_groups, moe.groups_per_token
    )


def make_mixed_job(spec: Spec, of_gpu: Callable[[str], Efficiency]) -> Job:
    """Return the job of a spec whose cluster may have several kinds of GPU.

    Its efficiency is the worst of all kinds. Where each stage lies on one part, the
    job of each kind comes too. `of_gpu` returns the efficiency of a GPU by its name.
    """
    cluster = spec.cluster
    parts = [part.topology for part in cluster.parts] or [cluster.topology]
    gpus = [topology.gpu.name for topology in parts]
    job = make_job(spec, reduce(Efficiency.worse, map(of_gpu, gpus)))
    if not isinstance(cluster, StagedCluster):
        return job
    kinds = []
    for topology in cluster.kinds:
        alone = spec.model_copy(update={"cluster": Cluster(topology=topology)})
        kinds.append(make_job(alone, of_gpu(topology.gpu.name)))
    return replace(job, gpu_kinds=tuple(kinds))
