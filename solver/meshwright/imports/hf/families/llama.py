"""Llama 2, 3 and 4, and architectures that differ from Llama 3 in biases alone.

Sources: transformers 5.23.0, models/{llama,llama4,granite,seed_oss,smollm3,ernie4_5}.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import LLAMA, Architecture, Fields, kinds
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts

BIASES = {
    (False, False): "none",
    (True, False): "attention",
    (False, True): "mlp",
    (True, True): "all",
}
"""Our word for biases, by whether attention and the MLP have them."""


def biases(config: Config) -> Fields:
    """Return which linear layers have a bias."""
    flags = config.flag("attention_bias"), config.flag("mlp_bias")
    return {"bias": BIASES[flags]}


def llama4(config: Config) -> Fields:
    """Return experts, and the order of layers.

    Layers with rotary positions attend inside chunks, each fourth one to all tokens.
    All layers with experts have one more that every token visits.
    """
    layers, width = config.layers(), config.count("intermediate_size")
    step = config.count_or("interleave_moe_layer_step", 1) or 1
    listed = config.numbers("moe_layers")
    with_experts = set(listed or range(step - 1, layers, step))
    no_rope = config.numbers("no_rope_layers")
    rope = no_rope or [int((index + 1) % 4 != 0) for index in range(layers)]
    if len(rope) < layers:
        raise config.error("no_rope_layers", f"expected {layers} numbers")
    chunk = config.count_or("attention_chunk_size", 0)
    found: dict[str, Fields] = {}
    every = []
    for index in range(layers):
        is_chunked = bool(rope[index]) and chunk > 0
        words = "chunked" if is_chunked else "full"
        name = words if index in with_experts else f"{words} dense"
        kind: Fields = {"attention_chunk": chunk} if is_chunked else {}
        found[name] = kind if index in with_experts else {**kind, "experts": False}
        every.append(name)
    has_bias = {"bias": "attention" if config.flag("attention_bias") else "none"}
    d_ff = config.count("intermediate_size_mlp")
    moe = experts(config, "intermediate_size", shared_d_ff=width)
    return {**has_bias, "d_ff": d_ff, "moe": moe, **kinds(found, every)}


def seed_oss(config: Config) -> Fields:
    """Return the biases, of which the last matmul of attention has its own switch."""
    flags = [
        config.flag(name)
        for name in ("attention_bias", "attention_out_bias", "mlp_bias")
    ]
    words = {(True, False, False): "qkv", (True, True, False): "attention"}
    words |= {(False, False, False): "none", (True, True, True): "all"}
    if (bias := words.get(tuple(flags))) is None:  # type: ignore[arg-type]
        raise config.error("attention_out_bias", "not modelled beside other biases")
    return {"bias": bias}


ARCHITECTURES = [
    Architecture(
        "llama",
        {"vocab_size": 32000, "tie_word_embeddings": False},
        LLAMA,
        more=biases,
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
        more=llama4,
    ),
    Architecture("granite", {"tie_word_embeddings": False}, LLAMA, more=biases),
    Architecture(
        "smollm3",
        {"tie_word_embeddings": True},
        LLAMA,
        refused={"use_sliding_window": "windows in all layers but a few"},
        more=biases,
    ),
    Architecture(
        "seed_oss",
        {"head_dim": 128, "attention_bias": True, "tie_word_embeddings": False},
        LLAMA,
        more=seed_oss,
    ),
    Architecture(
        "ernie4_5",
        {"head_dim": 128, "tie_word_embeddings": True},
        LLAMA,
        refused={"use_bias": "biases in all linear layers"},
    ),
]  # fmt: skip
