"""Gemma 1 to 4: windows between layers that see all tokens, and norms on both sides.

Sources: transformers 5.23.0, models/{gemma,gemma2,gemma3,gemma4}.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.imports.hf.architecture import LLAMA, Architecture, Fields
from meshwright.imports.hf.attention_kinds import every_nth_full, windowed
from meshwright.imports.hf.config import Config


def gemma(config: Config) -> Fields:
    """Return biases."""
    return {"bias": "attention" if config.flag("attention_bias") else "none"}


def gemma2(config: Config) -> Fields:
    """Return windows in every other layer, the first one among them."""
    return gemma(config) | windowed(config, every_nth_full(config.layers(), 2))


def gemma3(config: Config) -> Fields:
    """Return windows in all but each sixth layer."""
    step = config.count_or(("sliding_window_pattern", "_sliding_window_pattern"), 6)
    return gemma(config) | windowed(config, every_nth_full(config.layers(), step or 6))


def gemma4(config: Config) -> Fields:
    """Return windows, wide heads of the layers without one, and experts beside the MLP.

    The MLP beside the experts is what every token visits. Layers with experts have
    three more norms, a scale before the router, and one per expert.
    """
    layers = config.layers()
    usual = [*every_nth_full(layers, 6)[:-1], "full"]
    full = _full_attention(config)
    found = gemma(config) | windowed(config, usual, full)
    if not config.flag("enable_moe_block"):
        return found
    shared = config.count("intermediate_size")
    moe = {
        "n_experts": config.count("num_experts"),
        "top_k": config.count("top_k_experts"),
        "d_ff": config.count("moe_intermediate_size"),
        "shared_d_ff": shared,
        "own_norms": 4,
        "router_bias": True,
    }
    return found | {"moe": moe}


def _full_attention(config: Config) -> Fields:
    """Return what layers without a window change, from either form of the file."""
    kv_heads, by_layer = config.count("num_key_value_heads"), {}
    listed = config.get("per_layer_config")
    if isinstance(listed, dict) and listed:
        by_layer = next(iter(listed.values()))
        if not isinstance(by_layer, dict):
            raise config.error("per_layer_config", "expected a mapping for each layer")
    own = replace(config, data={**config.data, **by_layer})
    names = ("head_dim",) if by_layer else ("global_head_dim",)
    full: Fields = {"head_dim": own.count_or(names, 512)}
    if config.flag("attention_k_eq_v"):
        name = "num_key_value_heads" if by_layer else "num_global_key_value_heads"
        full["n_kv_heads"] = own.count_or(name, kv_heads)
        full["keys_are_values"] = True
    return full


TIED = {"tie_word_embeddings": True, "head_dim": 256}
SIZES = {
    **TIED, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096,
}  # fmt: skip
FOUR_NORMS = {**LLAMA, "norms_per_layer": 4}

ARCHITECTURES = [
    Architecture(
        "gemma",
        {
            **TIED, "vocab_size": 256000, "hidden_size": 3072,
            "intermediate_size": 24576, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 16,
        },
        LLAMA,
        more=gemma,
    ),
    Architecture("gemma2", {**SIZES, "vocab_size": 256000}, FOUR_NORMS, more=gemma2),
    Architecture(
        "gemma3_text",
        {**SIZES, "vocab_size": 262208, "_sliding_window_pattern": 6},
        {**FOUR_NORMS, "qk_norm": True},
        more=gemma3,
    ),
    Architecture(
        "gemma4_text",
        {
            **SIZES, "vocab_size": 262144, "num_hidden_layers": 30,
            "sliding_window": 512, "hidden_size_per_layer_input": 256,
        },
        {**FOUR_NORMS, "qk_norm": True},
        refused={
            "hidden_size_per_layer_input": "embeddings of their own for every layer",
            "num_kv_shared_layers": "layers that reuse the keys of another one",
        },
        more=gemma4,
    ),
]  # fmt: skip
