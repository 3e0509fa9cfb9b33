"""Qwen 2, 2.5 and 3, dense and with experts.

Sources: transformers 5.23.0, models/{qwen2,qwen2_moe,qwen3,qwen3_moe}.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import LLAMA, Architecture, Fields, kinds
from meshwright.imports.hf.attention_kinds import windowed
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts


def windows(config: Config) -> Fields:
    """Return the windows, if used, of the layers from `max_window_layers` on."""
    if not config.flag("use_sliding_window"):
        return {}
    layers, first = config.layers(), config.count_or("max_window_layers", 28)
    return windowed(
        config, ["sliding" if index >= first else "full" for index in range(layers)]
    )


def qwen3(config: Config) -> Fields:
    """Return biases and windows."""
    bias = "attention" if config.flag("attention_bias") else "none"
    return {"bias": bias, **windows(config)}


def with_experts(config: Config) -> Fields:
    """Return experts in every n-th layer, but for those that the file lists."""
    if config.flag("use_sliding_window"):
        raise config.error("use_sliding_window", "not modelled beside experts")
    layers, step = config.layers(), config.count_or("decoder_sparse_step", 1)
    dense = set(config.numbers("mlp_only_layers"))
    dense |= {index for index in range(layers) if not step or (index + 1) % step}
    every = ["dense" if index in dense else "experts" for index in range(layers)]
    return kinds({"experts": {}, "dense": {"experts": False}}, every)


def qwen2_moe(config: Config) -> Fields:
    """Return routed experts, and gated shared ones."""
    shared = config.count_or("shared_expert_intermediate_size", 0)
    moe = experts(config, "moe_intermediate_size", shared) | {"shared_gate": True}
    bias = "qkv" if config.flag("qkv_bias") else "none"
    return {"moe": moe, "bias": bias, **with_experts(config)}


def qwen3_moe(config: Config) -> Fields:
    """Return routed experts."""
    moe = experts(config, "moe_intermediate_size")
    bias = "attention" if config.flag("attention_bias") else "none"
    return {"moe": moe, "bias": bias, **with_experts(config)}


QWEN2 = {**LLAMA, "bias": "qkv"}
QWEN3 = {**LLAMA, "qk_norm": True}
UNTIED = {"tie_word_embeddings": False, "vocab_size": 151936}

ARCHITECTURES = [
    Architecture("qwen2", UNTIED, QWEN2, more=windows),
    Architecture("qwen3", {**UNTIED, "head_dim": 128}, QWEN3, more=qwen3),
    Architecture(
        "qwen2_moe",
        {
            **UNTIED, "num_experts": 60, "num_experts_per_tok": 4, "qkv_bias": True,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        },
        LLAMA,
        more=qwen2_moe,
    ),
    Architecture(
        "qwen3_moe",
        {
            **UNTIED, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "num_key_value_heads": 4,
        },
        QWEN3,
        more=qwen3_moe,
    ),
]  # fmt: skip
