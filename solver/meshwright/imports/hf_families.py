"""Families of models on Hugging Face, as a table: which fields, defaults and parts.

An entry says of a `model_type`, by transformers 5.23.0: the defaults of its class
(models/NAME/configuration_NAME.py), the fields of our model that it decides, other
names of fields, fields that must be absent, null or false, and its parts.
"""

from __future__ import annotations

from meshwright.imports.hf_config import LLAMA, Architecture
from meshwright.imports.hf_layers import (
    OPT_OFFSET,
    attention_bias,
    bias,
    biased_experts,
    biases,
    delta_nets,
    delta_nets_with_experts,
    experts,
    experts_after_dense,
    experts_beside_mlp,
    falcon,
    flag,
    four_times_wide,
    gated_experts,
    indexed_attention,
    late_windows,
    latent_attention,
    llama4,
    nemotron_h,
    opt_limits,
    positions,
    qkv_bias,
    seed_biases,
    sparse_steps,
    uniform_window,
    wide_full_attention,
    windows_but_every,
)  # fmt: skip

TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}

MISTRAL_SIZES = {
    "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 32000,
    "tie_word_embeddings": False,
}  # fmt: skip

QWEN2 = {**LLAMA, "bias": "qkv"}
QWEN3 = {**LLAMA, "qk_norm": True}
QWEN_SIZES = {**UNTIED, "vocab_size": 151936}

HYBRID = {**LLAMA, "qk_norm": True, "output_gate": True}
HYBRID_SIZES = {
    "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "num_attention_heads": 16, "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}  # fmt: skip

GEMMA_HEADS = {**TIED, "head_dim": 256}
GEMMA_SIZES = {
    **GEMMA_HEADS, "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
    "sliding_window": 4096,
}  # fmt: skip
FOUR_NORMS = {**LLAMA, "norms_per_layer": 4}

GLM_SIZES = {
    "vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 13696, "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip

LATENT_REFUSED = {
    "attention_bias": "biases of latent attention",
    "mlp_bias": "biases of the MLP beside latent attention",
}

V3 = {
    "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
    "intermediate_size": 18432, "num_attention_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "first_k_dense_replace": 3, "tie_word_embeddings": False,
}  # fmt: skip
INDEXER = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}

LAYERNORM = {"gated_mlp": False, "norm": "layernorm", "bias": "all"}
OLD_WIDTH = ("n_embd", "hidden_size")
BLOOM_WIDTH = ("hidden_size", "n_embed")
OLD_NAMES = {
    "n_layers": ("n_layer", "num_hidden_layers"),
    "d_model": OLD_WIDTH,
    "n_heads": ("n_head", "num_attention_heads"),
}
BLOOM_NAMES = {
    "n_layers": ("n_layer", "num_hidden_layers"),
    "d_model": BLOOM_WIDTH,
    "n_heads": ("n_head", "num_attention_heads"),
}

ARCHITECTURES = (
    # Llama 2, 3 and 4, and those that differ from Llama 3 in biases alone:
    # models/{llama,llama4,granite,seed_oss,smollm3,ernie4_5}
    Architecture(
        "llama",
        {"vocab_size": 32000, **UNTIED},
        LLAMA,
        parts=(biases,),
    ),
    Architecture(
        "llama4_text",
        {
            "vocab_size": 202048, "hidden_size": 5120, "num_hidden_layers": 48,
            "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_local_experts": 16, "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
            "tie_word_embeddings": False,
        },
        LLAMA,
        parts=(llama4,),
    ),
    Architecture("granite", UNTIED, LLAMA, parts=(biases,)),
    Architecture(
        "smollm3",
        TIED,
        LLAMA,
        refused={"use_sliding_window": "windows in all layers but a few"},
        parts=(biases,),
    ),
    Architecture(
        "seed_oss",
        {"head_dim": 128, "attention_bias": True, "tie_word_embeddings": False},
        LLAMA,
        parts=(seed_biases,),
    ),
    Architecture(
        "ernie4_5",
        {"head_dim": 128, "tie_word_embeddings": True},
        LLAMA,
        refused={"use_bias": "biases in all linear layers"},
    ),
    # Mistral, with Nemo and Ministral, and Mixtral: models/{mistral,ministral3,mixtral}
    Architecture(
        "mistral",
        {**MISTRAL_SIZES, "sliding_window": 4096},
        LLAMA,
        parts=(uniform_window,),
    ),
    Architecture(
        "ministral3",
        {
            **MISTRAL_SIZES, "head_dim": 128, "num_hidden_layers": 34,
            "vocab_size": 131072,
        },
        LLAMA,
        parts=(uniform_window,),
    ),
    Architecture(
        "mixtral",
        {**MISTRAL_SIZES, "num_local_experts": 8, "num_experts_per_tok": 2},
        LLAMA,
        parts=(experts("intermediate_size"), uniform_window),
    ),
    # Qwen 2, 2.5 and 3, dense and with experts:
    # models/{qwen2,qwen2_moe,qwen3,qwen3_moe}
    Architecture("qwen2", QWEN_SIZES, QWEN2, parts=(late_windows,)),
    Architecture(
        "qwen3",
        {**QWEN_SIZES, "head_dim": 128},
        QWEN3,
        parts=(attention_bias, late_windows),
    ),
    Architecture(
        "qwen2_moe",
        {
            **QWEN_SIZES, "num_experts": 60, "num_experts_per_tok": 4,
            "qkv_bias": True, "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
        LLAMA,
        parts=(gated_experts, bias("qkv_bias", "qkv"), sparse_steps),
    ),
    Architecture(
        "qwen3_moe",
        {
            **QWEN_SIZES, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "num_key_value_heads": 4,
        },
        QWEN3,
        parts=(experts(), attention_bias, sparse_steps),
    ),
    # Qwen3-Next and Qwen 3.5, gated delta nets between layers of gated attention:
    # models/{qwen3_next,qwen3_5,qwen3_5_moe}
    Architecture(
        "qwen3_next",
        {
            **HYBRID_SIZES, "vocab_size": 151936, "hidden_size": 2048,
            "num_hidden_layers": 48, "moe_intermediate_size": 512, "num_experts": 512,
            "num_experts_per_tok": 10, "shared_expert_intermediate_size": 512,
        },
        {**HYBRID, "d_ff": 1},
        parts=(delta_nets_with_experts,),
    ),
    Architecture(
        "qwen3_5_text",
        {
            **HYBRID_SIZES, "vocab_size": 248320, "hidden_size": 4096,
            "num_hidden_layers": 32, "intermediate_size": 12288,
            "num_key_value_heads": 4,
        },
        HYBRID,
        parts=(delta_nets,),
    ),
    Architecture(
        "qwen3_5_moe_text",
        {
            **HYBRID_SIZES, "vocab_size": 248320, "hidden_size": 2048,
            "num_hidden_layers": 40, "moe_intermediate_size": 512, "num_experts": 256,
            "num_experts_per_tok": 8, "shared_expert_intermediate_size": 512,
        },
        {**HYBRID, "d_ff": 1},
        parts=(delta_nets_with_experts,),
    ),
    # Gemma 1 to 4, windows between layers that see all tokens, norms on both sides:
    # models/{gemma,gemma2,gemma3,gemma4}
    Architecture(
        "gemma",
        {
            **GEMMA_HEADS, "vocab_size": 256000, "hidden_size": 3072,
            "intermediate_size": 24576, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 16,
        },
        LLAMA,
        parts=(attention_bias,),
    ),
    Architecture(
        "gemma2",
        {**GEMMA_SIZES, "vocab_size": 256000},
        FOUR_NORMS,
        parts=(attention_bias, windows_but_every(2)),
    ),
    Architecture(
        "gemma3_text",
        {**GEMMA_SIZES, "vocab_size": 262208, "_sliding_window_pattern": 6},
        {**FOUR_NORMS, "qk_norm": True},
        parts=(
            attention_bias,
            windows_but_every(6, "sliding_window_pattern", "_sliding_window_pattern"),
        ),
    ),
    Architecture(
        "gemma4_text",
        {
            **GEMMA_SIZES, "vocab_size": 262144, "num_hidden_layers": 30,
            "sliding_window": 512, "hidden_size_per_layer_input": 256,
        },
        {**FOUR_NORMS, "qk_norm": True},
        refused={
            "hidden_size_per_layer_input": "separate embeddings for every layer",
            "num_kv_shared_layers": "layers that reuse the keys of another one",
        },
        parts=(wide_full_attention, attention_bias, experts_beside_mlp),
    ),
    # GLM 4, and GLM 4.5 and 4.6 with experts: models/{glm,glm4,glm4_moe}
    Architecture("glm", GLM_SIZES, LLAMA, parts=(qkv_bias,)),
    Architecture(
        "glm4", GLM_SIZES, {**LLAMA, "norms_per_layer": 4}, parts=(qkv_bias,)
    ),
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
        parts=(
            experts_after_dense,
            qkv_bias,
            flag("qk_norm", "use_qk_norm"),
        ),
    ),
    # DeepSeek V2, V3 and V3.2, and other latent attention, GLM 4.7 Flash and 5:
    # models/{deepseek_v2,deepseek_v3,deepseek_v32,glm4_moe_lite,glm_moe_dsa}.
    # The module that predicts a second token in training is not part of these
    # classes. Biases of routers that no gradient trains are buffers there, and no
    # parameters.
    Architecture(
        "deepseek_v2",
        {
            "vocab_size": 102400, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
            "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 0,
            "moe_intermediate_size": 1407, "tie_word_embeddings": False,
        },
        LLAMA,
        refused=LATENT_REFUSED,
        parts=(latent_attention,),
    ),
    Architecture(
        "deepseek_v3", V3, LLAMA, refused=LATENT_REFUSED, parts=(latent_attention,)
    ),
    Architecture(
        "deepseek_v32",
        {**V3, **INDEXER},
        LLAMA,
        refused=LATENT_REFUSED,
        parts=(indexed_attention,),
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
        refused=LATENT_REFUSED,
        parts=(latent_attention,),
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
        refused=LATENT_REFUSED,
        parts=(indexed_attention,),
    ),
    # gpt-oss, with biases of experts, sinks, and windows in every other layer:
    # models/gpt_oss
    Architecture(
        "gpt_oss",
        {
            "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
            "num_hidden_layers": 36, "num_attention_heads": 64, "head_dim": 64,
            "num_key_value_heads": 8, "num_local_experts": 128,
            "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True,
            "tie_word_embeddings": False,
        },
        {"gated_mlp": True, "norm": "rmsnorm", "bias": "all", "attention_sinks": True},
        parts=(biased_experts, windows_but_every(2)),
    ),
    # Phi 1 to 4, and Phi 3.5 with experts: models/{phi,phi3,phimoe}
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
    Architecture(
        "phi3", {**UNTIED, "vocab_size": 32064}, LLAMA, parts=(uniform_window,)
    ),
    Architecture(
        "phimoe",
        {
            **UNTIED, "vocab_size": 32064, "num_local_experts": 16,
            "num_experts_per_tok": 2, "num_key_value_heads": 8,
        },
        {"gated_mlp": True, "norm": "layernorm"},
        parts=(
            attention_bias,
            flag("head_bias", "lm_head_bias"),
            experts("intermediate_size"),
            uniform_window,
        ),
    ),
    # Layer norms and MLPs without a gate, GPT-2, GPT-NeoX, GPT-J, Falcon, OPT, BLOOM:
    # models/{gpt2,gpt_neox,gptj,falcon,opt,bloom,starcoder2}
    Architecture(
        "gpt2",
        {
            **TIED, "vocab_size": 50257, "n_positions": 1024, "n_embd": 768,
            "n_layer": 12, "n_head": 12,
        },
        {**LAYERNORM, "d_ff": 1},
        OLD_NAMES,
        {"add_cross_attention": "attention to an encoder"},
        parts=(
            positions("n_positions", "max_position_embeddings"),
            four_times_wide(*OLD_WIDTH, inner="n_inner"),
        ),
    ),
    Architecture(
        "gptj",
        {
            **UNTIED, "vocab_size": 50400, "n_embd": 4096,
            "n_layer": 28, "n_head": 16,
        },
        {
            **LAYERNORM, "bias": "mlp", "parallel_residual": True,
            "norms_per_layer": 1, "head_bias": True, "d_ff": 1,
        },
        OLD_NAMES,
        parts=(four_times_wide(*OLD_WIDTH, inner="n_inner"),),
    ),
    Architecture(
        "gpt_neox",
        {
            **UNTIED, "vocab_size": 50432, "hidden_size": 6144,
            "num_hidden_layers": 44, "num_attention_heads": 64,
            "intermediate_size": 24576, "attention_bias": True,
            "use_parallel_residual": True,
        },
        LAYERNORM,
        parts=(
            flag("parallel_residual", "use_parallel_residual"),
            bias("attention_bias", "all", "mlp"),
        ),
    ),
    Architecture(
        "falcon",
        {
            **TIED, "vocab_size": 65024, "hidden_size": 4544,
            "num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True,
            "parallel_attn": True,
        },
        {**LAYERNORM, "d_ff": 1},
        {**BLOOM_NAMES, "n_layers": ("num_hidden_layers", "n_layer"),
         "n_heads": ("num_attention_heads", "n_head")},
        parts=(falcon,),
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
        parts=(
            opt_limits,
            positions("max_position_embeddings", unused=OPT_OFFSET),
            bias("enable_bias", "all"),
        ),
    ),
    Architecture(
        "bloom",
        {**TIED, "vocab_size": 250880},
        {**LAYERNORM, "alibi": True, "embedding_norm": True, "d_ff": 1},
        BLOOM_NAMES,
        parts=(four_times_wide(*BLOOM_WIDTH),),
    ),
    Architecture(
        "starcoder2",
        {**TIED, "use_bias": True},
        LAYERNORM,
        parts=(bias("use_bias", "all"), uniform_window),
    ),
    # Nemotron 4, and the hybrids Nemotron-H and Nemotron 3 of Mamba-2 layers, of which
    # each has one part alone, a state space, attention, an MLP or experts:
    # models/{nemotron,nemotron_h}
    Architecture(
        "nemotron",
        {
            "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576,
            "num_hidden_layers": 32, "num_attention_heads": 48,
            "tie_word_embeddings": False,
        },
        {"gated_mlp": False, "norm": "layernorm"},
        parts=(biases,),
    ),
    Architecture(
        "nemotron_h",
        {
            "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504,
            "num_hidden_layers": 52, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128,
            "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
            "conv_kernel": 4, "use_conv_bias": True, "chunk_size": 128,
            "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688, "tie_word_embeddings": False,
        },
        {"gated_mlp": False, "norm": "rmsnorm", "bias": "none", "d_ff": 1},
        refused={
            "use_bias": "biases of Mamba layers",
            "mlp_bias": "biases of MLPs beside Mamba layers",
            "attention_bias": "biases of attention beside Mamba layers",
            "mamba_proj_bias": "biases of Mamba layers",
        },
        parts=(nemotron_h,),
    ),
)  # fmt: skip
