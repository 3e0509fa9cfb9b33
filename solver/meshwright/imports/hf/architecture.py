"""The declaration of an architecture: how its config.json maps to our model.

A family is one module of `imports/hf/families`, whose `ARCHITECTURES` lists what it
reads. A declaration is data as far as it goes:

- `defaults`: what the class of the architecture takes where the file is silent, from
  the configuration classes of transformers 5.23.0 (models/NAME/configuration_NAME.py);
- `names`: for fields of our model the fields of the file, where they differ from most;
- `says`: fields of our model that the architecture decides;
- `refused`: fields of the file that must be absent, null or false, with what they mean;
- `more`: what needs arithmetic or a list, as fields of our model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.imports.hf.config import Config, Names

Fields = dict[str, Any]
"""Fields of our model."""

NAMES: Mapping[str, Names] = {
    "n_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "d_ff": "intermediate_size",
    "vocab": "vocab_size",
    "tied_embeddings": "tie_word_embeddings",
}
"""The fields of most architectures."""


@dataclass(frozen=True)
class Architecture:
    """How one value of `model_type` is read."""

    model_type: str
    defaults: Mapping[str, Any]
    says: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Names] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Config], Fields] | None = None

    def fields(self, config: Config) -> Fields:
        """Return the fields of our model.

        Raises:
            SpecError: a field is missing, wrong, or says what is not modelled.
        """
        for name, meaning in self.refused.items():
            value = config.get(name)
            if value not in (None, False, 0, [], ""):
                raise config.error(name, f"not modelled: {meaning}")
        names = {**NAMES, **self.names}
        d_model, heads = config.count(names["d_model"]), config.count(names["n_heads"])
        fields: Fields = {
            "n_layers": config.layers(names["n_layers"]),
            "d_model": d_model,
            "n_heads": heads,
            "n_kv_heads": config.count_or(names["n_kv_heads"], heads),
            "head_dim": config.count_or(names["head_dim"], d_model // heads),
            "vocab": config.count(names["vocab"]),
            "tied_embeddings": config.flag(names["tied_embeddings"]),
            "learned_positions": 0,
            **self.says,
        }
        if "d_ff" not in fields:
            fields["d_ff"] = config.count(names["d_ff"])
        return fields | (self.more(config) if self.more else {})


LLAMA: Mapping[str, Any] = {"gated_mlp": True, "norm": "rmsnorm", "bias": "none"}
"""What most architectures since Llama share."""


def kinds(found: Mapping[str, Fields], every: Sequence[str]) -> Fields:
    """Return kinds of layers and their order, or nothing where all are alike.

    A kind without changes is the model's own; of one kind that changes something the
    changes are the model's.
    """
    used = {name: found[name] for name in dict.fromkeys(every)}
    if len(used) == 1:
        (only,) = used.values()
        changed = dict(only)
        return (
            {"moe": None} | changed if changed.pop("experts", 1) is False else changed
        )
    period = next(
        size
        for size in range(1, len(every) + 1)
        if all(every[i] == every[i % size] for i in range(len(every)))
    )
    return {"kinds": used, "pattern": list(every[:period])}
