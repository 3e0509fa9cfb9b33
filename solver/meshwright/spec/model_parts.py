"""Parts of a model: a mixture of experts, and latent attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field, model_validator

from meshwright.spec.base import (
    Count,
    CountOrNone,
    Flag,
    Positive,
    Problem,
    SpecModel,
    refuse,
)
from meshwright.spec.divisors import nearest


class Experts(SpecModel):
    """The mixture of experts that stands for the MLP of all but the leading layers."""

    REPLACED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("layer_freq", "moe_layer_freq", "decoder_sparse_step"),
        "model.pattern and model.kinds, with experts: false in a kind without them",
    )

    n_experts: Count = Field(description="Routed experts of a layer.")
    top_k: Count = Field(description="Routed experts that a token visits.")
    d_ff: Count = Field(description="Inner width of one routed expert.")
    shared_d_ff: CountOrNone = Field(
        0, description="Inner width of the experts that every token visits, together."
    )
    first_dense_layers: CountOrNone = Field(
        0, description="Leading layers with an MLP of model.d_ff instead."
    )
    route_groups: Count = Field(
        1, description="Groups of neighbouring experts that a token chooses among."
    )
    groups_per_token: Count = Field(
        1, description="Groups that the experts of a token are in, at most."
    )
    router_bias: Flag = Field(
        False, description="A bias per routed expert that steers the choice of top_k."
    )
    capacity_factor: Positive | None = Field(
        None, description="Places per expert over the mean, padded; default dropless."
    )
    latent_d: CountOrNone = Field(
        0, description="Width of the vectors that routed experts read; 0 for d_model."
    )
    shared_gate: Flag = Field(
        False, description="A gate over the results of shared experts, one per token."
    )
    own_norms: CountOrNone = Field(
        0, description="Norms and scales of d_model that only layers with experts have."
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Experts:
        if self.top_k > self.n_experts:
            most = self.n_experts
            sentence = f"is above model.moe.n_experts; accepted: up to {most}"
            refuse([Problem(("top_k",), self.top_k, sentence)])
        refuse(self._broken_groups())
        most_factor = self.n_experts / self.top_k
        if self.capacity_factor is not None and self.capacity_factor > most_factor:
            sentence = "is above model.moe.n_experts / model.moe.top_k; accepted: "
            sentence += f"up to {most_factor:g}"
            refuse([Problem(("capacity_factor",), self.capacity_factor, sentence)])
        return self

    def _broken_groups(self) -> Iterator[Problem]:
        """Yield groups that are unequal, or too few for the experts of a token."""
        groups, chosen = self.route_groups, self.groups_per_token
        if self.n_experts % groups:
            near = nearest(groups, self.n_experts)
            sentence = f"does not divide model.moe.n_experts {self.n_experts}; {near}"
            yield Problem(("route_groups",), groups, sentence)
        elif chosen > groups:
            sentence = f"is above model.moe.route_groups; accepted: up to {groups}"
            yield Problem(("groups_per_token",), chosen, sentence)
        elif self.top_k > (most := chosen * (self.n_experts // groups)):
            sentence = f"is above the experts of its groups; accepted: up to {most}"
            yield Problem(("top_k",), self.top_k, sentence)


class Indexer(SpecModel):
    """A light attention that picks the tokens which the other one reads.

    It is that of DeepSeek-V3.2 (DeepSeek-AI 2025, section 2.1): queries come from the
    latent vector of queries, and all heads share one key, after a layer norm.
    """

    n_heads: Count = Field(description="Heads that score the tokens.")
    head_dim: Count = Field(description="Width of such a head, and of the key.")
    top_k: Count = Field(description="Tokens that a token attends to.")


class LatentAttention(SpecModel):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1)."""

    q_rank: CountOrNone = Field(
        0, description="Width of the queries' latent vector; 0 where there is none."
    )
    kv_rank: Count = Field(description="Width of the latent vector of keys and values.")
    rope_dim: Count = Field(description="Rotary part of a query or key head.")
    nope_dim: Count = Field(description="The other part of a query or key head.")
    v_dim: Count = Field(description="Width of a value head.")
    indexer: Indexer | None = Field(
        None, description="What picks the tokens to attend to; default all before it."
    )

    @model_validator(mode="after")
    def _check_indexer(self) -> LatentAttention:
        if self.indexer is not None and not self.q_rank:
            sentence = "beside model.mla.indexer; accepted: a width above 0"
            refuse([Problem(("q_rank",), 0, sentence)])
        return self
