"""The `model` section: the shape of a dense, decoder-only transformer."""

from __future__ import annotations

from typing import Literal, TypeGuard

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


class Moe(SpecModel):
    """Stub."""

    n_experts: Count
    top_k: Count
    d_ff: Count
    shared_d_ff: CountOrNone = 0
    first_dense_layers: CountOrNone = 0
    capacity_factor: Positive | None = None


class Model(SpecModel):
    """The shape of a dense, decoder-only transformer; presets are in specs/models."""

    name: Name = Field("inline", description="For the reader; not used.")
    n_layers: LayerCount = Field(description="Transformer layers.")
    d_model: Count = Field(description="Width of the residual stream.")
    n_heads: Count = Field(description="Query heads.")
    n_kv_heads: Count = Field(description="Key and value heads; n_heads without GQA.")
    head_dim: Count = Field(description="Width of a head; default d_model / n_heads.")
    d_ff: Count = Field(description="Inner width of the MLP.")
    vocab: Count = Field(description="Rows of the embedding table.")
    gated_mlp: Flag = Field(False, description="SwiGLU or GeGLU: three MLP matrices.")
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norms_per_layer: Count = Field(
        2,
        description="Norms of a layer: 1 that attention and MLP share, 2 before them, "
        "or 4 before and after them.",
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
    dropout: Flag = Field(False, description="Trained with dropout: masks are saved.")
    moe: Moe | None = None
    published_params: Positive | None = Field(
        None, description="Parameters that the model's authors publish; for tests."
    )

    @property
    def leading_layers(self) -> int:
        """Return how many layers come before those with experts; 0 without experts."""
        return self.moe.first_dense_layers if self.moe else 0

    @model_validator(mode="before")
    @classmethod
    def _default_heads(cls, data: object) -> object:
        """Fill n_kv_heads and head_dim from the heads where they are left out."""
        if not isinstance(data, dict):
            return data
        heads, width = data.get("n_heads"), data.get("d_model")
        if not _is_count(heads) or not _is_count(width):
            # Refused on their own account: these keep quiet about it.
            return {"n_kv_heads": 1, "head_dim": 1, **data}
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


def _is_count(value: object) -> TypeGuard[int]:
    is_flag = isinstance(value, bool)
    return isinstance(value, int) and not is_flag and 0 < value <= MAX_COUNT
