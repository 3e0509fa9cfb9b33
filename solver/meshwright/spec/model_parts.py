"""Parts of a model: experts, latent attention, state spaces, kinds, and details."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from meshwright.spec.base import (
    Count,
    CountOrNone,
    Flag,
    Name,
    Positive,
    Problem,
    Share,
    SpecModel,
    nearest,
    refuse,
)


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
    activation_limit: Positive | None = Field(
        None, description="Limit of what enters their activation; default none."
    )
    own_norms: CountOrNone = Field(
        0, description="Norms and scales of d_model that only layers with experts have."
    )

    @property
    def copies_per_token(self) -> float:
        """Return the places that a token takes among experts, padding included."""
        return self.top_k * (self.capacity_factor or 1.0)

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


class RopeScaling(SpecModel):
    """How rotary positions are stretched to sequences longer than the first ones."""

    form: Literal["llama3", "yarn"] = Field(
        description="That of Llama 3.1, or YaRN (Peng et al. 2023, arXiv 2309.00071)."
    )
    factor: Positive = Field(description="Stretch of the slowest rotations.")
    original_positions: Count = Field(description="Positions before the stretch.")
    low_freq: Positive = Field(
        1, description="llama3: rotations per sequence below which all is stretched."
    )
    high_freq: Positive = Field(
        4, description="llama3: rotations per sequence above which nothing is."
    )
    beta_fast: Positive = Field(
        32, description="yarn: rotations above which nothing is stretched."
    )
    beta_slow: Positive = Field(
        1, description="yarn: rotations below which all is stretched."
    )
    mscale: Positive | None = Field(
        None, description="yarn: scale of attention; default by the factor."
    )
    mscale_all_dim: Positive | None = Field(
        None, description="yarn: the same of parts without positions; default none."
    )


class Details(SpecModel):
    """Details that a model needs to be trained and no price depends on, for exports."""

    hub: Name | None = Field(
        None, description="Its name on the Hugging Face hub, as Qwen/Qwen3-8B."
    )
    mtp_layers: Count | None = Field(
        None,
        description="Layers of its checkpoint that predict further tokens; "
        "`model.mtp_layers` trains them.",
    )
    norm_eps: Positive | None = Field(
        None, description="Epsilon of norms; default that of the framework."
    )
    activation: Literal["silu", "gelu", "relu", "squared_relu"] | None = Field(
        None, description="Of the MLP; default silu where it is gated, gelu otherwise."
    )
    rope_theta: Positive = Field(10_000, description="Base of rotary positions.")
    rope_share: Share = Field(1, description="Share of a head that rotates.")
    rope_scaling: RopeScaling | None = Field(
        None, description="Stretch of rotary positions; default none."
    )
    router_score: Literal["softmax", "sigmoid"] | None = Field(
        None, description="Of experts; default sigmoid with moe.router_bias."
    )
    router_sums_to_one: Flag = Field(
        True, description="Weights of a token's experts are divided by their sum."
    )
    router_scale: Positive = Field(
        1, description="What the weights of a token's experts are multiplied by."
    )


Mixer = Literal["attention", "state_space", "none"]
"""The part of a layer that mixes the tokens of a sequence."""


class StateSpace(SpecModel):
    """A recurrent mixer of tokens: Mamba-2, or a gated delta net.

    Mamba-2 is by Dao and Gu 2024 (arXiv 2405.21060), the gated delta net by Yang et al.
    2024 (arXiv 2412.06464). Queries, keys and values of the latter are called C, B and
    x in the former; both have a short convolution over them, and a gate z.
    """

    form: Literal["mamba2", "delta_net"] = Field(description="Which of the two it is.")
    n_heads: Count = Field(description="Heads of x, or of values.")
    head_dim: Count = Field(description="Width of such a head.")
    groups: Count = Field(description="Groups of B and C, or heads of keys.")
    state_dim: Count = Field(description="Width of B and C, or of a key head.")
    conv: Count = Field(4, description="Tokens that the convolution reads.")
    conv_bias: Flag = Field(False, description="A bias in the convolution.")
    chunk: Count = Field(
        64, description="Tokens of a chunk, inside which it works as attention does."
    )

    @property
    def inner(self) -> int:
        """Return the width of all heads together."""
        return self.n_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Return the channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state_dim

    @property
    def gates(self) -> int:
        """Return the numbers per token that steer the state: one or two per head."""
        return self.n_heads * (1 if self.form == "mamba2" else 2)

    @property
    def input_width(self) -> int:
        """Return the width of the first matmul's result: z, x, B, C and the gates."""
        return self.inner + self.conv_width + self.gates


class LayerKind(SpecModel):
    """The fields of the model that a kind of layer changes; the others are as there."""

    mixer: Mixer | None = Field(None, description="See model.mixer.")
    n_kv_heads: Count | None = Field(None, description="See model.n_kv_heads.")
    head_dim: Count | None = Field(None, description="See model.head_dim.")
    keys_are_values: Flag | None = Field(None, description="See model.keys_are_values.")
    shares_indexer: Flag | None = Field(None, description="See model.shares_indexer.")
    attention_window: CountOrNone | None = Field(
        None, description="See model.attention_window."
    )
    attention_chunk: CountOrNone | None = Field(
        None, description="See model.attention_chunk."
    )
    d_ff: CountOrNone | None = Field(
        None, description="See model.d_ff; 0 for a layer without an MLP."
    )
    experts: Flag | None = Field(
        None, description="Whether model.moe stands for the MLP; default true."
    )
    norms_per_layer: Count | None = Field(
        None, description="See model.norms_per_layer."
    )

    @property
    def changed(self) -> dict[str, object]:
        """Return the fields of the model that this kind changes, by name."""
        said = self.model_dump(exclude_none=True)
        if said.pop("experts", True) is False:
            said["moe"] = None
        return said


class Order(NamedTuple):
    """The order of kinds: leading layers once, then a sequence that repeats."""

    leading: tuple[str, ...]
    repeated: tuple[str, ...]
    repeats: int

    @property
    def period(self) -> int:
        """Return the number of layers after which the kinds repeat."""
        return len(self.repeated)

    def shares(self) -> dict[str, float]:
        """Return the share of every kind among the layers that repeat."""
        counts = Counter(self.repeated)
        return {name: counts[name] / self.period for name in self.names}

    @property
    def names(self) -> list[str]:
        """Return the kinds in the order in which they first occur."""
        return list(dict.fromkeys([*self.leading, *self.repeated]))


@cache
def order_of(pattern: tuple[str, ...], layers: int) -> Order:
    """Return the order of a pattern that repeats until there are enough layers.

    The fewest layers lead or repeat, of which no more lead than repeat: a remainder of
    the pattern at the end counts as leading layers of a pattern that starts later.
    """
    every = [pattern[index % len(pattern)] for index in range(layers)]
    found = (_repeating(every, period) for period in range(1, layers + 1))
    fitting = [
        order
        for order in found
        if not order.leading or (order.repeats > 1 and 2 * len(order.leading) <= layers)
    ]
    return min(fitting, key=lambda order: len(order.leading) + order.period)


def _repeating(every: list[str], period: int) -> Order:
    """Return the order with this period that has the fewest leading layers."""
    same = len(every)
    while same > period and every[same - 1] == every[same - 1 - period]:
        same -= 1
    start = max(same - period, 0)
    start += (len(every) - start) % period
    repeats = (len(every) - start) // period
    return Order(tuple(every[:start]), tuple(every[start : start + period]), repeats)
