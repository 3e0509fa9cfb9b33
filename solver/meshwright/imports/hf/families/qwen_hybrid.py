"""Qwen3-Next and Qwen 3.5: gated delta nets between layers of gated attention.

Sources: transformers 5.23.0, models/{qwen3_next,qwen3_5,qwen3_5_moe}.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import LLAMA, Architecture, Fields, kinds
from meshwright.imports.hf.attention_kinds import every_nth_full
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts

WORDS = {"linear_attention": "linear", "full_attention": "full"}


def delta_net(config: Config) -> Fields:
    """Return the recurrent mixer of the layers that are not attention."""
    return {
        "form": "delta_net",
        "n_heads": config.count("linear_num_value_heads"),
        "head_dim": config.count("linear_value_head_dim"),
        "groups": config.count("linear_num_key_heads"),
        "state_dim": config.count("linear_key_head_dim"),
        "conv": config.count("linear_conv_kernel_dim"),
    }


def hybrid(config: Config) -> Fields:
    """Return the mixers of tokens, and the order of layers."""
    layers = config.layers()
    step = config.count_or("full_attention_interval", 4) or 4
    every = config.words("layer_types", layers, WORDS)
    every = every or every_nth_full(layers, step, "linear")
    bias = "attention" if config.flag("attention_bias") else "none"
    found = kinds({"linear": {"mixer": "state_space"}, "full": {}}, every)
    return {"bias": bias, "state_space": delta_net(config), **found}


def with_experts(config: Config) -> Fields:
    """Return the same, with experts in all layers."""
    if config.count_or("decoder_sparse_step", 1) != 1:
        raise config.error("decoder_sparse_step", "not modelled; accepted: 1")
    if config.numbers("mlp_only_layers"):
        raise config.error("mlp_only_layers", "not modelled; accepted: none")
    shared = config.count_or("shared_expert_intermediate_size", 0)
    moe = experts(config, "moe_intermediate_size", shared) | {"shared_gate": True}
    d_ff = config.count_or("intermediate_size", moe["d_ff"])
    return {"moe": moe, "d_ff": d_ff, **hybrid(config)}


GATED = {**LLAMA, "qk_norm": True, "output_gate": True}
SIZES = {
    "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "num_attention_heads": 16, "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}  # fmt: skip

ARCHITECTURES = [
    Architecture(
        "qwen3_next",
        {
            **SIZES, "vocab_size": 151936, "hidden_size": 2048,
            "num_hidden_layers": 48, "moe_intermediate_size": 512, "num_experts": 512,
            "num_experts_per_tok": 10, "shared_expert_intermediate_size": 512,
        },
        {**GATED, "d_ff": 1},
        more=with_experts,
    ),
    Architecture(
        "qwen3_5_text",
        {
            **SIZES, "vocab_size": 248320, "hidden_size": 4096,
            "num_hidden_layers": 32, "intermediate_size": 12288,
            "num_key_value_heads": 4,
        },
        GATED,
        more=hybrid,
    ),
    Architecture(
        "qwen3_5_moe_text",
        {
            **SIZES, "vocab_size": 248320, "hidden_size": 2048,
            "num_hidden_layers": 40, "moe_intermediate_size": 512, "num_experts": 256,
            "num_experts_per_tok": 8, "shared_expert_intermediate_size": 512,
        },
        {**GATED, "d_ff": 1},
        more=with_experts,
    ),
]  # fmt: skip
