"""Nemotron 4, and the hybrids Nemotron-H and Nemotron 3 of Mamba-2 layers.

A layer of a hybrid has one part alone: a state space, attention, an MLP or experts.
Sources: transformers 5.23.0, models/{nemotron,nemotron_h}.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import Architecture, Fields, kinds
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts, grouped

WORDS = {
    "linear_attention": "mamba", "mamba": "mamba", "full_attention": "attention",
    "attention": "attention", "mlp": "mlp", "moe": "moe",
}  # fmt: skip

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

KINDS: dict[str, Fields] = {
    "mamba": {"mixer": "state_space", "d_ff": 0, "experts": False},
    "attention": {"mixer": "attention", "d_ff": 0, "experts": False},
    "mlp": {"mixer": "none", "experts": False},
    "moe": {"mixer": "none"},
}


def nemotron(config: Config) -> Fields:
    """Return biases."""
    flags = config.flag("attention_bias"), config.flag("mlp_bias")
    words = {(False, False): "none", (True, False): "attention"}
    return {"bias": words.get(flags, "all" if flags[0] else "mlp")}


def nemotron_h(config: Config) -> Fields:
    """Return the parts of layers, and their order."""
    every = order(config)
    groups = ("n_groups", "mamba_n_groups")
    fields: Fields = {
        "n_layers": len(every),
        "norms_per_layer": 1,
        "d_ff": config.count("intermediate_size"),
        "state_space": {
            "form": "mamba2",
            "n_heads": config.count("mamba_num_heads"),
            "head_dim": config.count("mamba_head_dim"),
            "groups": config.count(groups),
            "state_dim": config.count("ssm_state_size"),
            "conv": config.count(("conv_kernel", "mamba_d_conv")),
            "conv_bias": config.flag(("use_conv_bias", "mamba_conv_bias")),
            "chunk": config.count(("chunk_size", "mamba_chunk_size")),
        },
    }
    if "mamba" not in every:
        raise config.error("layers_block_type", "has no Mamba layer")
    has_experts = "moe" in every
    used = {name: dict(kind) for name, kind in KINDS.items()}
    if has_experts:
        shared = config.count_or("n_shared_experts", 0) and config.count(
            "moe_shared_expert_intermediate_size"
        )
        moe = experts(config, "moe_intermediate_size", shared) | grouped(config)
        moe["latent_d"] = config.count_or("moe_latent_size", 0)
        fields["moe"] = moe
    else:
        for kind in used.values():
            kind.pop("experts", None)
    return fields | kinds(used, every)


def order(config: Config) -> list[str]:
    """Return the kind of every layer, from a list of words or a text of letters.

    Raises:
        SpecError: a letter is unknown, or there is no order at all.
    """
    listed = config.get(("layers_block_type", "layer_types"))
    if listed is not None:
        count = len(listed) if isinstance(listed, list) else 1
        return config.words(("layers_block_type", "layer_types"), count, WORDS)
    text = config.get("hybrid_override_pattern")
    if not isinstance(text, str) or not text:
        raise config.error("hybrid_override_pattern", "missing; expected M, -, * and E")
    for letter in text:
        if letter not in LETTERS:
            told = f"{letter!r} is not supported; accepted: {', '.join(LETTERS)}"
            raise config.error("hybrid_override_pattern", told)
    return [LETTERS[letter] for letter in text]


ARCHITECTURES = [
    Architecture(
        "nemotron",
        {
            "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576,
            "num_hidden_layers": 32, "num_attention_heads": 48,
            "tie_word_embeddings": False,
        },
        {"gated_mlp": False, "norm": "layernorm"},
        more=nemotron,
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
        more=nemotron_h,
    ),
]  # fmt: skip
