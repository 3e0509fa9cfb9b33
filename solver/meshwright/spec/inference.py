"""The `inference` section: what a deployment serves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec.base import Count, Positive, SpecModel

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
