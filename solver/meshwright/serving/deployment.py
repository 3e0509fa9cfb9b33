"""Jobs and deployments of serving: what the formulas need, and plans as numpy columns.

A job is a spec with its fabric and its GPU as kernels see it. Deployments are plans
without their split of layers; the rules that they keep are shared ones, and those that
serving adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.job import Efficiency
from meshwright.cost.roofline import GpuRates
from meshwright.cost.whole_model import keys_seen, kinds_of_layers
from meshwright.frameworks.base.shared import KV_HEADS_REPEATED
from meshwright.plans.columns import Bools, Columns, Floats, Ints
from meshwright.plans.rule import Degrees, RuleOf
from meshwright.rules.legality import field_pins, mesh_pins, stage_pins
from meshwright.rules.universal import HEADS_DIVISIBLE, LAYERS_COVER_STAGES, tp_link
from meshwright.spec.gpu import FORMATS
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import AXES, Pins
from meshwright.spec.serving import (
    PINS,
    CachePrecision,
    FixedSpec,
    Inference,
    ServingSpec,
    WeightPrecision,
)
from meshwright.topology.fabric import Fabric, Meshes
from meshwright.topology.groups import PP, TP, price_groups
from meshwright.topology.routed_fabric import build_fabric

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
        return replace(self, spec=self.spec.having("inference", **changes))

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


def jobs_of_kinds(job: ServingJob) -> Iterator[tuple[float, ServingJob]]:
    """Yield the share of every kind of layer, and a job with layers of it alone."""
    model = job.model
    if not model.pattern:
        yield 1.0, job
        return
    for kind in kinds_of_layers(model):
        spec = job.spec.model_copy(update={"model": kind.model})
        yield kind.layers / model.n_layers, replace(job, spec=spec)


def reach(job: ServingJob) -> int | None:
    """Return how many tokens of the cache a layer ever reads; None for all."""
    model = job.model
    return model.attention_window or model.attention_chunk or None


def attended_share(job: ServingJob, is_prefill: bool) -> float:
    """Return the share of the tokens before it that a token attends to."""
    most = reach(job)
    if most is None:
        return 1.0
    if is_prefill:
        length = job.inference.prompt_len
        return min(1.0, keys_seen(job.model, length) / (length / 2))
    return min(1.0, most / job.inference.mean_context)


@dataclass(frozen=True)
class Deployments(Columns):
    """Columns of equal length, one row for each deployment."""

    tp: Ints
    pp: Ints
    dp_replicate: Ints
    """Replicas: copies of the model that share the requests."""
    microbatches: Ints
    """Groups of requests that follow each other through the stages of a replica."""
    requests: Ints
    """Requests in flight on the busiest replica."""
    attention_dp: Ints
    """Groups of the tensor group that attend for requests of their own.

    Attention, embedding, head, and MLPs without routed experts are split over the GPUs
    of one group and replicated over groups; routed experts are split over all of them
    (vLLM docs/serving/data_parallel_deployment.md)."""
    mesh: Ints
    """Index of the mesh in the table of meshes."""
    tp_s_per_byte: Floats
    tp_latency_s: Floats
    pp_s_per_byte: Floats
    pp_latency_s: Floats

    @property
    def group_size(self) -> Ints:
        """Return the number of requests in the largest group."""
        return -(-self.requests // self.microbatches)

    @property
    def attention_tp(self) -> Ints:
        """Return the GPUs over which the attention of a request is split."""
        return np.asarray(np.maximum(self.tp // self.attention_dp, 1))

    def attended(self, requests: Ints) -> Ints:
        """Return the most requests, of some of a replica, that one GPU attends for."""
        return -(-requests // self.attention_dp)


def on_meshes(
    job: ServingJob, meshes: Meshes, microbatches: Ints, attention_dp: Ints
) -> Deployments:
    """Return one deployment on each mesh, with its groups of requests and of GPUs."""
    paths = price_groups(job.fabric, meshes)
    columns = dict(zip(AXES, meshes.prod(axis=2).T, strict=True))
    replicas = columns["dp_replicate"]
    return Deployments(
        tp=columns["tp"],
        pp=columns["pp"],
        dp_replicate=replicas,
        microbatches=microbatches,
        requests=-(-job.inference.batch // replicas),
        attention_dp=attention_dp,
        mesh=np.arange(len(meshes)),
        tp_s_per_byte=paths.s_per_byte[:, TP],
        tp_latency_s=paths.latency_s[:, TP],
        pp_s_per_byte=paths.s_per_byte[:, PP],
        pp_latency_s=paths.latency_s[:, PP],
    )


ServingRule = RuleOf[ServingSpec, Deployments]


def serving_rules(spec: ServingSpec, meshes: Meshes) -> list[ServingRule]:
    """Return the rules of a spec, its pins last; rows index the table `meshes`."""
    limits = [TP_LINK] if spec.limits.tp_min_link_gb_s is not None else []
    return [*RULES, *limits, *_pins(spec.pins, meshes)]


def _of_attention(rule: RuleOf[FixedSpec, Degrees]) -> ServingRule:
    """Return a rule on tp as one on the GPUs over which attention is split."""

    def holds(spec: ServingSpec, rows: Deployments) -> Bools:
        return rule.holds(spec, replace(rows, tp=rows.attention_tp))

    return ServingRule(rule.name, rule.sentence, rule.source, holds, rule.numbers)


RULES = (
    _of_attention(HEADS_DIVISIBLE),
    _of_attention(KV_HEADS_REPEATED),
    ServingRule(
        "mlp_divisible",
        "tp divides the inner width of MLP and experts",
        "vLLM, layers/linear.py: divide",
        lambda spec, rows: np.asarray(
            (spec.model.d_ff % rows.attention_tp == 0)
            & ((spec.model.moe.d_ff if spec.model.moe else 0) % rows.tp == 0)
        ),
        "d_ff {spec.model.d_ff}, tp {tp}",
    ),
    ServingRule(
        "attention_groups",
        "attention_dp divides tp, and every group attends for a request",
        "vLLM docs/serving/data_parallel_deployment.md; idle groups only wait",
        lambda _spec, rows: (
            (rows.tp % rows.attention_dp == 0) & (rows.attention_dp <= rows.group_size)
        ),
        "attention_dp {attention_dp}, tp {tp}, {group_size} requests in a group",
    ),
    ServingRule(
        "attention_dp_has_experts",
        "attention_dp is of models with experts: replicas serve others as well",
        "vLLM docs/serving/data_parallel_deployment.md",
        lambda spec, rows: (rows.attention_dp == 1) | np.bool_(spec.model.moe),
        "attention_dp {attention_dp}",
    ),
    LAYERS_COVER_STAGES,
    ServingRule(
        "whole_patterns",
        "a model with several kinds of layers is served without a pipeline",
        "prices of layers are means over all of them",
        lambda spec, rows: (rows.pp == 1) | np.bool_(not spec.model.pattern),
        "pp {pp}",
    ),
    ServingRule(
        "groups_have_requests",
        "every group has a request",
        "the definition of a group",
        lambda _spec, rows: rows.microbatches <= rows.requests,
        "{microbatches} groups, {requests} requests",
    ),
)

FP8_BLOCK = 128
"""Rows and columns with one scale in checkpoints in fp8, as of DeepSeek and Qwen."""


def remarks_on(spec: ServingSpec, tp: int) -> tuple[str, ...]:
    """Return sentences on what engines may refuse of a plan with some tp.

    A block of weights in fp8 has one scale, and none is cut (vllm issue 17569, sglang
    quantization/fp8.py). Scales of rows, as of Llama's checkpoints, may be.
    """
    moe = spec.model.moe
    if moe is None or spec.inference.precision != "fp8":
        return ()
    width = moe.d_ff // tp
    if width % FP8_BLOCK == 0:
        return ()
    return (
        "vLLM and SGLang may refuse weights in fp8 that have a scale for each block "
        f"of {FP8_BLOCK}: the {moe.d_ff:,} of an expert over tp {tp} are {width:,}. "
        "Take weights with scales of rows, or keep experts whole "
        f"(--enable-expert-parallel, --ep-size {tp}), which is not priced.",
    )


TP_LINK: ServingRule = tp_link(lambda rows: rows.tp_s_per_byte)


def _pins(pins: Pins, meshes: Meshes) -> list[ServingRule]:
    fields = field_pins(pins, {*PINS} - {"layers", "mesh"})
    return [*fields, *stage_pins({"layers": pins.layers}), *mesh_pins(pins, meshes)]
