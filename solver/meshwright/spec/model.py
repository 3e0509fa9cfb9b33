"""The `model` section: the shape of a dense, decoder-only transformer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from meshwright.spec.base import Count, CountOrNone, Flag, LayerCount, SpecModel


class Model(SpecModel):
    """The shape of a dense, decoder-only transformer; presets are in specs/models."""

    name: str = Field("inline", description="For the reader; not used.")
    n_layers: LayerCount = Field(description="Transformer layers.")
    d_model: Count = Field(description="Width of the residual stream.")
    n_heads: Count = Field(description="Query heads.")
    n_kv_heads: Count = Field(description="Key and value heads; n_heads without GQA.")
    head_dim: Count = Field(description="Width of a head; default d_model / n_heads.")
    d_ff: Count = Field(description="Inner width of the MLP.")
    vocab: Count = Field(description="Rows of the embedding table.")
    gated_mlp: Flag = Field(False, description="SwiGLU or GeGLU: three MLP matrices.")
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    bias: Literal["none", "qkv", "all"] = Field(
        "all", description="Which linear layers have a bias; the head has none."
    )
    tied_embeddings: Flag = Field(True, description="Head and embedding share weights.")
    learned_positions: CountOrNone = Field(0, description="Learned position vectors.")
    dropout: Flag = Field(False, description="Trained with dropout: masks are saved.")
    published_params: Count | float | None = Field(
        None, description="Parameters that the model's authors publish; for tests."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_heads(cls, data: object) -> object:
        """Fill n_kv_heads and head_dim from the heads where they are left out."""
        if not isinstance(data, dict):
            return data
        heads, width = data.get("n_heads"), data.get("d_model")
        filled = {"n_kv_heads": heads, **data} if heads is not None else dict(data)
        is_derivable = isinstance(heads, int) and isinstance(width, int) and heads > 0
        if "head_dim" not in filled and is_derivable:
            if width % heads:
                raise ValueError(
                    f"d_model {width} is not a multiple of n_heads {heads}; "
                    "give head_dim if that is meant"
                )
            filled["head_dim"] = width // heads
        return filled

    @model_validator(mode="after")
    def _check_kv_heads(self) -> Model:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} is not a multiple of "
                f"n_kv_heads {self.n_kv_heads}"
            )
        return self
