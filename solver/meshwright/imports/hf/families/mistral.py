"""Mistral, with Nemo and Ministral, and Mixtral.

Sources: transformers 5.23.0, models/{mistral,ministral3,mixtral}.
"""

from __future__ import annotations

from meshwright.imports.hf.architecture import LLAMA, Architecture, Fields
from meshwright.imports.hf.attention_kinds import uniform_window
from meshwright.imports.hf.config import Config
from meshwright.imports.hf.experts import experts


def mixtral(config: Config) -> Fields:
    """Return experts of the width of an MLP, and the window."""
    return {"moe": experts(config, "intermediate_size"), **uniform_window(config)}


SIZES = {
    "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 32000,
    "tie_word_embeddings": False,
}  # fmt: skip

ARCHITECTURES = [
    Architecture(
        "mistral", {**SIZES, "sliding_window": 4096}, LLAMA, more=uniform_window
    ),
    Architecture(
        "ministral3",
        {**SIZES, "head_dim": 128, "num_hidden_layers": 34, "vocab_size": 131072},
        LLAMA,
        more=uniform_window,
    ),
    Architecture(
        "mixtral",
        {**SIZES, "num_local_experts": 8, "num_experts_per_tok": 2},
        LLAMA,
        more=mixtral,
    ),
]
