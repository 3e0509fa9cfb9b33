"""Phi 1 to 4, and Phi 3.5 with experts.

Sources: transformers 5.23.0, models/{phi,phi3,phimoe}.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import LLAMA, Architecture, Fields
from meshwright.imports.hf.attention_kinds import uniform_window
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts


def phimoe(config: Config) -> Fields:
    """Return experts, biases and the window."""
    bias = "attention" if config.flag("attention_bias") else "none"
    return {
        "bias": bias,
        "head_bias": config.flag("lm_head_bias"),
        "moe": experts(config, "intermediate_size"),
        **uniform_window(config),
    }


UNTIED = {"tie_word_embeddings": False}

ARCHITECTURES = [
    Architecture(
        "phi",
        {
            **UNTIED, "vocab_size": 51200, "hidden_size": 2048,
            "intermediate_size": 8192, "num_hidden_layers": 24,
            "num_attention_heads": 32,
        },
        {
            "gated_mlp": False, "norm": "layernorm", "bias": "all", "head_bias": True,
            "parallel_residual": True, "norms_per_layer": 1,
        },
        refused={"qk_layernorm": "norms over query and key heads, with biases"},
    ),
    Architecture("phi3", {**UNTIED, "vocab_size": 32064}, LLAMA, more=uniform_window),
    Architecture(
        "phimoe",
        {
            **UNTIED, "vocab_size": 32064, "num_local_experts": 16,
            "num_experts_per_tok": 2, "num_key_value_heads": 8,
        },
        {"gated_mlp": True, "norm": "layernorm"},
        more=phimoe,
    ),
]  # fmt: skip
