"""Layer norms and MLPs without a gate: GPT-2, GPT-NeoX, GPT-J, Falcon, OPT and BLOOM.

Sources: transformers 5.23.0, models/{gpt2,gpt_neox,gptj,falcon,opt,bloom,starcoder2}.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import Architecture, Fields
from meshwright.imports.hf.attention_kinds import uniform_window
from meshwright.imports.hf.config import Config

LAYERNORM = {"gated_mlp": False, "norm": "layernorm", "bias": "all"}

OPT_OFFSET = 2
"""Rows of OPT's table of positions that no position uses."""


def gpt2(config: Config) -> Fields:
    """Return learned positions, and an MLP four times as wide as the model."""
    d_model = config.count(("n_embd", "hidden_size"))
    return {
        "learned_positions": config.count(("n_positions", "max_position_embeddings")),
        "d_ff": config.count_or("n_inner", 4 * d_model) or 4 * d_model,
    }


def gptj(config: Config) -> Fields:
    """Return the width of the MLP."""
    d_model = config.count(("n_embd", "hidden_size"))
    return {"d_ff": config.count_or("n_inner", 4 * d_model) or 4 * d_model}


def gpt_neox(config: Config) -> Fields:
    """Return biases, and whether attention and MLP run side by side."""
    is_parallel = config.flag("use_parallel_residual")
    bias = "all" if config.flag("attention_bias") else "mlp"
    return {"bias": bias, "parallel_residual": is_parallel}


def falcon(config: Config) -> Fields:
    """Return key heads, norms and positions, which changed from version to version."""
    heads = config.count(("num_attention_heads", "n_head"))
    is_new, d_model = config.flag("new_decoder_architecture"), config.count(DIM)
    is_parallel = is_new or config.flag("parallel_attn")
    if is_new:
        kv_heads = config.count_or(("num_kv_heads", "n_head_kv"), heads)
    else:
        kv_heads = 1 if config.flag("multi_query") else heads
    norms = 1 if is_parallel else 2
    if is_new:
        norms = config.count_or("num_ln_in_parallel_attn", 2)
    return {
        "n_kv_heads": kv_heads,
        "parallel_residual": is_parallel,
        "norms_per_layer": norms,
        "alibi": config.flag("alibi"),
        "bias": "all" if config.flag("bias") else "none",
        "d_ff": config.count_or("ffn_hidden_size", 4 * d_model) or 4 * d_model,
    }


def opt(config: Config) -> Fields:
    """Return learned positions.

    Raises:
        SpecError: norms are after the layers, or the embedding is narrower than them.
    """
    if not config.flag("do_layer_norm_before"):
        raise config.error("do_layer_norm_before", "not modelled: norms after layers")
    d_model = config.count("hidden_size")
    if config.count_or("word_embed_proj_dim", d_model) != d_model:
        told = "not modelled: an embedding that is narrower than the layers"
        raise config.error("word_embed_proj_dim", told)
    positions = config.count("max_position_embeddings") + OPT_OFFSET
    bias = "all" if config.flag("enable_bias") else "none"
    return {"learned_positions": positions, "bias": bias}


def bloom(config: Config) -> Fields:
    """Return an MLP four times as wide as the model."""
    return {"d_ff": 4 * config.count(("hidden_size", "n_embed"))}


def starcoder2(config: Config) -> Fields:
    """Return biases and the window."""
    bias = "all" if config.flag("use_bias") else "none"
    return {"bias": bias, **uniform_window(config)}


DIM = ("hidden_size", "n_embed")
TIED = {"tie_word_embeddings": True}
OLD_NAMES = {
    "n_layers": ("n_layer", "num_hidden_layers"),
    "d_model": ("n_embd", "hidden_size"),
    "n_heads": ("n_head", "num_attention_heads"),
}
BLOOM_NAMES = {
    "n_layers": ("n_layer", "num_hidden_layers"),
    "d_model": DIM,
    "n_heads": ("n_head", "num_attention_heads"),
}
NO_BIAS = "norms without weights and biases"

ARCHITECTURES = [
    Architecture(
        "gpt2",
        {
            **TIED, "vocab_size": 50257, "n_positions": 1024, "n_embd": 768,
            "n_layer": 12, "n_head": 12,
        },
        {**LAYERNORM, "d_ff": 1},
        OLD_NAMES,
        {"add_cross_attention": "attention to an encoder"},
        gpt2,
    ),
    Architecture(
        "gptj",
        {
            "tie_word_embeddings": False, "vocab_size": 50400, "n_embd": 4096,
            "n_layer": 28, "n_head": 16,
        },
        {
            **LAYERNORM, "bias": "mlp", "parallel_residual": True,
            "norms_per_layer": 1, "head_bias": True, "d_ff": 1,
        },
        OLD_NAMES,
        more=gptj,
    ),
    Architecture(
        "gpt_neox",
        {
            "tie_word_embeddings": False, "vocab_size": 50432, "hidden_size": 6144,
            "num_hidden_layers": 44, "num_attention_heads": 64,
            "intermediate_size": 24576, "attention_bias": True,
            "use_parallel_residual": True,
        },
        LAYERNORM,
        more=gpt_neox,
    ),
    Architecture(
        "falcon",
        {
            **TIED, "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
            "num_attention_heads": 71, "multi_query": True, "parallel_attn": True,
        },
        {**LAYERNORM, "d_ff": 1},
        {**BLOOM_NAMES, "n_layers": ("num_hidden_layers", "n_layer"),
         "n_heads": ("num_attention_heads", "n_head")},
        more=falcon,
    ),
    Architecture(
        "opt",
        {
            **TIED, "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12,
            "ffn_dim": 3072, "num_attention_heads": 12, "enable_bias": True,
            "max_position_embeddings": 2048, "do_layer_norm_before": True,
        },
        LAYERNORM,
        {"d_ff": "ffn_dim"},
        {"_remove_final_layer_norm": "a model without a norm after the last layer"},
        opt,
    ),
    Architecture(
        "bloom",
        {**TIED, "vocab_size": 250880},
        {**LAYERNORM, "alibi": True, "embedding_norm": True, "d_ff": 1},
        BLOOM_NAMES,
        more=bloom,
    ),
    Architecture(
        "starcoder2", {**TIED, "use_bias": True}, LAYERNORM, more=starcoder2
    ),
]  # fmt: skip
