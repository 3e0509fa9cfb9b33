"""GLM 4, and GLM 4.5 and 4.6 with experts; those with latent attention are DeepSeek's.

Sources: transformers 5.23.0, models/{glm,glm4,glm4_moe}.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import LLAMA, Architecture, Fields
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts, grouped, leading_dense


def glm(config: Config) -> Fields:
    """Return biases: the last matmul of attention never has one."""
    return {"bias": "qkv" if config.flag("attention_bias") else "none"}


def glm4_moe(config: Config) -> Fields:
    """Return experts after the leading layers."""
    width = config.count("moe_intermediate_size")
    shared = config.count_or("n_shared_experts", 0) * width
    moe = experts(config, "moe_intermediate_size", shared) | grouped(config)
    moe["first_dense_layers"] = leading_dense(config)
    return {**glm(config), "moe": moe, "qk_norm": config.flag("use_qk_norm")}


SIZES = {
    "vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 13696, "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip

ARCHITECTURES = [
    Architecture("glm", SIZES, LLAMA, more=glm),
    Architecture("glm4", SIZES, {**LLAMA, "norms_per_layer": 4}, more=glm),
    Architecture(
        "glm4_moe",
        {
            "vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8,
            "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "first_k_dense_replace": 1, "tie_word_embeddings": False,
        },
        LLAMA,
        more=glm4_moe,
    ),
]  # fmt: skip
