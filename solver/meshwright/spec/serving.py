"""A spec with `inference`: one question about serving a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import ClassVar, Literal, get_args

from pydantic import Field, model_validator

from meshwright.spec.base import Count, Positive, Problem, SpecModel, refuse
from meshwright.spec.cluster import Cluster
from meshwright.spec.consistency import pinned_layers
from meshwright.spec.goals import Limits, MemorySpread, card_gib
from meshwright.spec.gpu import Precision
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import Pins, written
from meshwright.spec.spec import Spec

WeightPrecision = Literal["bf16", "fp16", "fp8", "int8", "int4"]
"""int8 and int4 are of weights alone: matmuls run in 16 bits. fp8 is of matmuls too."""

CachePrecision = Literal["bf16", "fp16", "fp8", "int8"]


class Slo(SpecModel):
    """How long a user may wait."""

    ttft_ms: Positive | None = Field(None, description="Time to the first token.")
    tpot_ms: Positive | None = Field(None, description="Time per token after it.")


class Inference(SpecModel):
    """Requests of one shape, always so many of them in flight."""

    batch: Count = Field(description="Requests in flight, over all replicas.")
    prompt_len: Count = Field(description="Tokens of a prompt.")
    output_len: Count = Field(description="Tokens that a request generates.")
    precision: WeightPrecision = Field("bf16", description="Of weights.")
    kv_precision: CachePrecision | None = Field(
        None, description="Of cached keys and values; default 16 bits."
    )
    objective: Literal["latency", "throughput"] = Field(
        "latency", description="What is best: the shortest request, or the most tokens."
    )
    slo: Slo = Field(default_factory=lambda: Slo())
    prefill_tokens: Count = Field(
        8192, description="Tokens of prompts that one pass takes in at most."
    )
    kv_block: Count = Field(16, description="Tokens of a page of the cache.")
    weight_group: Count = Field(128, description="int4 weights that share a scale.")

    decode_attention: Literal["grouped", "per_head"] = Field(
        "grouped",
        description="Whether decoding reads a cached head once for its group of query"
        " heads, or once for each.",
    )
    """FlashAttention, FlashInfer and XQA group; kernels of 2023 often did not."""
    overlap_host: bool = Field(
        False,
        description="Whether the host prepares a pass while the GPU is in the one"
        " before.",
    )
    """SGLang's overlap scheduler, vLLM's async scheduling; a fixed loop of graphs."""

    @property
    def context(self) -> int:
        """Return the tokens of a request when it is done."""
        return self.prompt_len + self.output_len

    @property
    def mean_context(self) -> float:
        """Return the tokens in a request's cache, on average over its output."""
        return self.prompt_len + self.output_len / 2


PINS = ("tp", "pp", "dp_replicate", "microbatches", "attention_dp", "layers", "mesh")
"""Plan fields that a deployment may pin."""


MEMORY_SPREAD = MemorySpread(sigma=0.014, basis="stated")
"""The spread of the memory of engines, an estimate: weights and cache are whole numbers
of bytes, laid out before the first request. What varies is the workspace of a prefill,
the CUDA context and the buffers of NCCL, some 3 % of a card, known to about half."""


class ServingSpec(SpecModel):
    """A model, a cluster, what is served, and what the user has already decided.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("serve-llama3-8b-1xa100", mw.ServingSpec)
        >>> spec.inference.objective, spec.inference.context
        ('latency', 8192)
    """

    NOT_MODELLED: ClassVar[Mapping[str, str]] = {
        "rules": "rules of your own, which plans of training keep; pins and limits "
        "decide plans of serving",
    }

    model: Model
    cluster: Cluster
    inference: Inference
    limits: Limits = Field(default_factory=lambda: Limits())
    pins: Pins = Field(default_factory=lambda: Pins())

    @model_validator(mode="after")
    def _check_agreement(self) -> ServingSpec:
        checks = (
            _precision,
            _positions,
            _parts,
            _pins,
            pinned_layers,
            _limits,
            _layers,
        )
        refuse(chain.from_iterable(check(self) for check in checks))
        return self

    @property
    def title(self) -> str:
        """Return the question in one line."""
        topology, inference = self.cluster.topology, self.inference
        return (
            f"{self.model.name} on {self.cluster.gpus:,} x {topology.gpu.name} "
            f"({topology.name}), inference, {inference.precision}, prompt "
            f"{inference.prompt_len:,}, output {inference.output_len:,}, "
            f"batch {inference.batch:,}, {inference.objective}"
        )

    @property
    def usable_gib(self) -> float:
        """Return the memory per GPU that a plan may use, GiB."""
        whole_gib = self.cluster.topology.gpu.memory_gib
        return self.limits.usable_gib(whole_gib, MEMORY_SPREAD)

    def fit_probability(self, needed_gib: float) -> float:
        """Return how likely a plan fits that is predicted to need so much of a GPU."""
        whole_gib = self.cluster.topology.gpu.memory_gib
        return MEMORY_SPREAD.fit_probability(card_gib(whole_gib), needed_gib)

    @property
    def matmul_precision(self) -> Precision:
        """Return the precision in which matmuls run."""
        known = self.cluster.topology.gpu.peak_tflops.known
        return _of_matmuls(self.inference.precision, known)


FixedSpec = Spec | ServingSpec
"""A spec of training or of serving."""


def _of_matmuls(weights: WeightPrecision, known: Collection[str]) -> Precision:
    """Return the precision of matmuls with such weights on a GPU with known peaks."""
    if weights in ("bf16", "fp16", "fp8"):
        return weights
    return "bf16" if "bf16" in known else "fp16"


def _precision(spec: ServingSpec) -> Iterable[Problem]:
    gpu = spec.cluster.topology.gpu
    known = gpu.peak_tflops.known
    if spec.matmul_precision not in known:
        every = get_args(WeightPrecision)
        accepted = [
            precision for precision in every if _of_matmuls(precision, known) in known
        ]
        sentence = f"has no peak on {gpu.name}; accepted: {', '.join(accepted)}"
        yield Problem(("inference", "precision"), spec.inference.precision, sentence)


def _positions(spec: ServingSpec) -> Iterable[Problem]:
    known, asked = spec.model.learned_positions, spec.inference.context
    if 0 < known < asked:
        sentence = f"and the output are {asked} tokens, above model.learned_positions; "
        sentence += f"accepted: up to {known} together"
        path = ("inference", "prompt_len")
        yield Problem(path, spec.inference.prompt_len, sentence)


def _layers(spec: ServingSpec) -> Iterable[Problem]:
    """Refuse layers that the kernels of serving are not known for."""
    model, moe = spec.model, spec.model.moe
    mixers = {model.mixer, *(kind.mixer for kind in model.kinds.values())}
    same = [
        model.keys_are_values,
        *(one.keys_are_values for one in model.kinds.values()),
    ]
    there = {
        "state_space": ("state_space" in mixers, "recurrent layers"),
        "mtp_layers": (model.mtp_layers > 0, "layers that predict further tokens"),
        "mixer": ("none" in mixers, "layers without attention"),
        "keys_are_values": (any(same), "keys that are values"),
        "mla.indexer": (model.picker is not None, "an indexer"),
        "moe.latent_d": (moe is not None and moe.latent_d > 0, "a latent width"),
    }
    for name, (is_there, what) in there.items():
        if is_there:
            path = ("model", *name.split("."))
            yield Problem(path, what, "is not modelled beside inference")


def _parts(spec: ServingSpec) -> Iterable[Problem]:
    if spec.cluster.parts:
        sentence = (
            "given beside inference; serve each of the parts by a spec of its own: one "
            "deployment over unlike GPUs is not modelled"
        )
        yield Problem(("cluster", "parts"), len(spec.cluster.parts), sentence)


def _pins(spec: ServingSpec) -> Iterable[Problem]:
    for name, value in spec.pins:
        if value is not None and name not in PINS:
            sentence = f"given beside inference; accepted: {', '.join(PINS)}"
            yield Problem(("pins", name), written(value), sentence)


def _limits(spec: ServingSpec) -> Iterable[Problem]:
    share = spec.limits.max_link_utilisation
    if share is not None:
        sentence = (
            "given beside inference; accepted: oom_risk, memory_margin, memory_gib, "
        )
        sentence += "tp_min_link_gb_s"
        yield Problem(("limits", "max_link_utilisation"), share, sentence)
