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

    @property
    def context(self) -> int:
        """Return the tokens of a request when it is done."""
        return self.prompt_len + self.output_len

    @property
    def mean_context(self) -> float:
        """Return the tokens in a request's cache, on average over its output."""
        return self.prompt_len + self.output_len / 2
