"""gpt-oss: experts with biases, sinks, and windows in every other layer.

Source: transformers 5.23.0, models/gpt_oss.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import Architecture, Fields
from meshwright.imports.hf.attention_kinds import every_nth_full, windowed
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts


def gpt_oss(config: Config) -> Fields:
    """Return experts and windows.

    Raises:
        SpecError: attention has no bias, although experts always have.
    """
    if not config.flag("attention_bias"):
        raise config.error("attention_bias", "not modelled: false; accepted: true")
    moe = experts(config, "intermediate_size") | {"router_bias": True}
    return {"moe": moe, **windowed(config, every_nth_full(config.layers(), 2))}


ARCHITECTURES = [
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
        more=gpt_oss,
    )
]  # fmt: skip
