"""The models that torchtitan has: which of them a spec's model is."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.spec.model import Model


class Flavor(NamedTuple):
    """A model of torchtitan: its module and its name there."""

    module: str
    name: str


Shape = tuple[int, int, int, int, int]
"""Layers, width, heads, inner width of a dense MLP or of an expert, vocabulary."""

FLAVORS: dict[Shape, Flavor] = {
    (16, 2048, 32, 8192, 128256): Flavor("llama3", "1B"),
    (28, 3072, 24, 8192, 128256): Flavor("llama3", "3B"),
    (32, 4096, 32, 14336, 128256): Flavor("llama3", "8B"),
    (80, 8192, 64, 28672, 128256): Flavor("llama3", "70B"),
    (126, 16384, 128, 53248, 128256): Flavor("llama3", "405B"),
    (36, 4096, 32, 12288, 151936): Flavor("qwen3", "8B"),
    (40, 5120, 40, 17408, 151936): Flavor("qwen3", "14B"),
    (64, 5120, 64, 25600, 151936): Flavor("qwen3", "32B"),
    (48, 2048, 32, 768, 151936): Flavor("qwen3", "30B-A3B"),
    (94, 4096, 64, 1536, 151936): Flavor("qwen3", "235B-A22B"),
    (27, 2048, 16, 1408, 102400): Flavor("deepseek_v3", "16B"),
    (60, 5120, 128, 1536, 102400): Flavor("deepseek_v3", "236B"),
    (61, 7168, 128, 2048, 129280): Flavor("deepseek_v3", "671B"),
}


def flavor(model: Model) -> Flavor | None:
    """Return the model of torchtitan that is of a shape, None where it has none."""
    inner = model.moe.d_ff if model.moe is not None else model.d_ff
    shape = (model.n_layers, model.d_model, model.n_heads, inner, model.vocab)
    is_of_kind = model.norm == "rmsnorm" and model.gated_mlp and model.bias == "none"
    found = FLAVORS.get(shape)
    return found if is_of_kind else None


def is_llama(model: Model) -> bool:
    """Return whether torchtitan's Llama 3 of other numbers is the model."""
    return (
        model.moe is None
        and model.mla is None
        and model.gated_mlp
        and model.norm == "rmsnorm"
        and model.norms_per_layer == 2
        and model.bias == "none"
        and model.head_dim * model.n_heads == model.d_model
        and not (model.qk_norm or model.parallel_residual or model.alibi)
        and not (model.embedding_norm or model.learned_positions or model.dropout)
    )
