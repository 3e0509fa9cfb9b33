"""The `model` section: the shape of a decoder-only transformer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, TypeGuard

from pydantic import Field, model_validator

from meshwright.spec.base import (
    MAX_COUNT,
    Count,
    CountOrNone,
    Flag,
    LayerCount,
    Name,
    Positive,
    Problem,
    SpecModel,
    refuse,
)
from meshwright.spec.divisors import nearest


class Experts(SpecModel):
    """The mixture of experts that stands for the MLP of all but the leading layers."""

    NOT_MODELLED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("layer_freq", "moe_layer_freq", "decoder_sparse_step"),
        "experts in every n-th layer; all but the leading layers have them",
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


class LatentAttention(SpecModel):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1)."""

    q_rank: CountOrNone = Field(
        0, description="Width of the queries' latent vector; 0 where there is none."
    )
    kv_rank: Count = Field(description="Width of the latent vector of keys and values.")
    rope_dim: Count = Field(description="Rotary part of a query or key head.")
    nope_dim: Count = Field(description="The other part of a query or key head.")
    v_dim: Count = Field(description="Width of a value head.")


class Model(SpecModel):
    """The shape of a decoder-only transformer; presets are in specs/models."""

    NOT_MODELLED: ClassVar[Mapping[str, str]] = {
        "mamba_layers": "layers with a state space instead of attention",
        "hybrid_override_pattern": "layers with a state space instead of attention",
        "layer_types": "layers of several kinds, other than leading dense ones",
        "sliding_window": "attention to the nearest tokens alone",
    }

    name: Name = Field("inline", description="For the reader; not used.")
    n_layers: LayerCount = Field(description="Transformer layers.")
    d_model: Count = Field(description="Width of the residual stream.")
    n_heads: Count = Field(description="Query heads.")
    n_kv_heads: Count = Field(description="Key and value heads; n_heads without GQA.")
    head_dim: Count = Field(
        description="Width of a head; default d_model / n_heads, or the sum of mla's."
    )
    d_ff: Count = Field(description="Inner width of the MLP.")
    vocab: Count = Field(description="Rows of the embedding table.")
    gated_mlp: Flag = Field(False, description="SwiGLU or GeGLU: three MLP matrices.")
    norm: Literal["layernorm", "rmsnorm"] = Field(
        "layernorm", description="The kind of all norms; layernorm has a bias."
    )
    norms_per_layer: Count = Field(
        2,
        description="Norms of a layer: 1 that attention and MLP share, 2 before them, "
        "or 4 before and after them.",
    )
    qk_norm: Flag = Field(
        False, description="A norm over each query head, and one over each key head."
    )
    parallel_residual: Flag = Field(
        False, description="Attention and MLP read the same input; both are added."
    )
    embedding_norm: Flag = Field(
        False, description="A norm after the embedding, before the first layer."
    )
    bias: Literal["none", "qkv", "all"] = Field(
        "all", description="Which linear layers have a bias; the head has none."
    )
    tied_embeddings: Flag = Field(True, description="Head and embedding share weights.")
    learned_positions: CountOrNone = Field(0, description="Learned position vectors.")
    alibi: Flag = Field(
        False, description="Linear biases on the scores; default rotary positions."
    )
    moe: Experts | None = Field(
        None, description="Experts instead of one MLP per layer; default dense."
    )
    mla: LatentAttention | None = Field(
        None, description="Latent attention; default plain heads of head_dim."
    )
    dropout: Flag = Field(False, description="Trained with dropout: masks are saved.")
    published_params: Positive | None = Field(
        None, description="Parameters that the model's authors publish; for tests."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_heads(cls, data: object) -> object:
        """Fill n_kv_heads and head_dim from the heads where they are left out."""
        if not isinstance(data, dict):
            return data
        heads, width = data.get("n_heads"), data.get("d_model")
        if not _is_count(heads) or not _is_count(width):
            # Both are refused for what they are; derived fields add no errors.
            return {"n_kv_heads": 1, "head_dim": 1, **data}
        if "head_dim" not in data and (latent := _latent_head_dim(data.get("mla"))):
            return {"n_kv_heads": heads, "head_dim": latent, **data}
        if "head_dim" not in data and width % heads:
            sentence = f"does not divide model.d_model {width}; {nearest(heads, width)}"
            sentence += ", or give model.head_dim"
            refuse([Problem(("n_heads",), heads, sentence)])
        return {"n_kv_heads": heads, "head_dim": width // heads, **data}

    @model_validator(mode="after")
    def _check_norms(self) -> Model:
        parallel, count = self.parallel_residual, self.norms_per_layer
        accepted = (1, 2) if parallel else (2, 4)
        if count not in accepted:
            state = "with" if parallel else "without"
            sentence = f"{state} model.parallel_residual; accepted: %d or %d" % accepted
            refuse([Problem(("norms_per_layer",), count, sentence)])
        return self

    @model_validator(mode="after")
    def _check_positions(self) -> Model:
        if self.alibi and self.learned_positions:
            sentence = "beside model.learned_positions; accepted: one of them"
            refuse([Problem(("alibi",), True, sentence)])
        return self

    @model_validator(mode="after")
    def _check_kv_heads(self) -> Model:
        heads, kv_heads = self.n_heads, self.n_kv_heads
        if heads % kv_heads:
            near = nearest(kv_heads, heads)
            sentence = f"does not divide model.n_heads {heads}; {near}"
            refuse([Problem(("n_kv_heads",), kv_heads, sentence)])
        return self

    @model_validator(mode="after")
    def _check_experts(self) -> Model:
        most = self.n_layers - 1
        if self.first_dense_layers > most:
            path = ("moe", "first_dense_layers")
            sentence = f"leaves no layer of model.n_layers {self.n_layers} to experts; "
            sentence += f"accepted: up to {most}"
            refuse([Problem(path, self.first_dense_layers, sentence)])
        return self

    @model_validator(mode="after")
    def _check_latent(self) -> Model:
        if self.mla is not None:
            beside = "beside model.mla; accepted:"
            width = self.mla.nope_dim + self.mla.rope_dim
            accepted = {
                "n_kv_heads": (self.n_heads, f"model.n_heads {self.n_heads}"),
                "head_dim": (width, f"nope_dim + rope_dim {width}"),
                "bias": ("none", "none"),
                "qk_norm": (False, "false"),
            }
            refuse(
                Problem((field,), getattr(self, field), f"{beside} {name}")
                for field, (only, name) in accepted.items()
                if getattr(self, field) != only
            )
        return self

    @property
    def first_dense_layers(self) -> int:
        """Return how many leading layers have an MLP instead of experts."""
        return self.moe.first_dense_layers if self.moe is not None else 0


def _latent_head_dim(mla: object) -> int | None:
    """Return the head_dim that latent attention implies, None where it has none."""
    if not isinstance(mla, dict):
        return None
    nope, rope = mla.get("nope_dim"), mla.get("rope_dim")
    return nope + rope if _is_count(nope) and _is_count(rope) else None


def _is_count(value: object) -> TypeGuard[int]:
    is_flag = isinstance(value, bool)
    return isinstance(value, int) and not is_flag and 0 < value <= MAX_COUNT
