"""DeepSeek V2, V3 and V3.2, and others with latent attention: GLM 4.7 Flash and 5.

Sources: transformers 5.23.0, models/{deepseek_v2,deepseek_v3,deepseek_v32,
glm4_moe_lite,glm_moe_dsa}. The module that predicts a second token in training
is not part of these classes. Biases of routers that no gradient trains are buffers
there, and no parameters.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import LLAMA, Architecture, Fields
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts, grouped, leading_dense

REFUSED = {
    "attention_bias": "biases of latent attention",
    "mlp_bias": "biases of the MLP beside latent attention",
}


def latents(config: Config) -> Fields:
    """Return the fields of `model.mla`."""
    return {
        "q_rank": config.count_or("q_lora_rank", 0),
        "kv_rank": config.count("kv_lora_rank"),
        "rope_dim": config.count("qk_rope_head_dim"),
        "nope_dim": config.count("qk_nope_head_dim"),
        "v_dim": config.count("v_head_dim"),
    }


def deepseek(config: Config) -> Fields:
    """Return latent attention, and experts after the leading layers."""
    mla, heads = latents(config), config.count("num_attention_heads")
    found: Fields = {
        "mla": mla,
        "n_kv_heads": heads,
        "head_dim": mla["nope_dim"] + mla["rope_dim"],
    }
    if config.get(("n_routed_experts", "num_local_experts")) is None:
        return found
    width = config.count("moe_intermediate_size")
    shared = config.count_or("n_shared_experts", 0) * width
    moe = experts(config, "moe_intermediate_size", shared) | grouped(config)
    leading = leading_dense(config)
    if leading == config.layers():
        return found
    return found | {"moe": moe | {"first_dense_layers": leading}}


def with_indexer(config: Config) -> Fields:
    """Return the same, with the indexer that picks the tokens to attend to."""
    told = "not modelled: layers that share the indexer of another one"
    if config.count_or("index_topk_freq", 1) != 1:
        raise config.error("index_topk_freq", told)
    if set(config.get("indexer_types") or "") - {"full", "F"}:
        raise config.error("indexer_types", told)
    found = deepseek(config)
    indexer = {
        "n_heads": config.count("index_n_heads"),
        "head_dim": config.count("index_head_dim"),
        "top_k": config.count("index_topk"),
    }
    return found | {"mla": found["mla"] | {"indexer": indexer}}


V3 = {
    "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
    "intermediate_size": 18432, "num_attention_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "first_k_dense_replace": 3, "tie_word_embeddings": False,
}  # fmt: skip
INDEXER = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}

ARCHITECTURES = [
    Architecture(
        "deepseek_v2",
        {
            "vocab_size": 102400, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
            "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 0,
            "moe_intermediate_size": 1407, "tie_word_embeddings": False,
        },
        LLAMA,
        refused=REFUSED,
        more=deepseek,
    ),
    Architecture("deepseek_v3", V3, LLAMA, refused=REFUSED, more=deepseek),
    Architecture(
        "deepseek_v32", {**V3, **INDEXER}, LLAMA, refused=REFUSED, more=with_indexer
    ),
    Architecture(
        "glm4_moe_lite",
        {
            "vocab_size": 154880, "hidden_size": 2048, "num_hidden_layers": 47,
            "intermediate_size": 10240, "num_attention_heads": 20, "q_lora_rank": 768,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
            "v_head_dim": 256, "moe_intermediate_size": 1536, "n_routed_experts": 64,
            "n_shared_experts": 1, "num_experts_per_tok": 4,
            "first_k_dense_replace": 1, "tie_word_embeddings": False,
        },
        LLAMA,
        refused=REFUSED,
        more=deepseek,
    ),
    Architecture(
        "glm_moe_dsa",
        {
            "vocab_size": 154880, "hidden_size": 6144, "num_hidden_layers": 78,
            "intermediate_size": 12288, "num_attention_heads": 64,
            "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 192, "v_head_dim": 256, "moe_intermediate_size": 2048,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "first_k_dense_replace": 3, "tie_word_embeddings": False,
            "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
        },
        LLAMA,
        refused=REFUSED,
        more=with_indexer,
    ),
]  # fmt: skip
