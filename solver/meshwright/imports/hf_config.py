"""The values of a config.json, checked as read, and how an architecture maps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.text import shown
from meshwright.spec.base import MAX_COUNT

MOST_LAYERS = 1_000

Names = str | tuple[str, ...]
"""A field, or several names that the same field has had."""


@dataclass
class Config:
    """The fields of a config.json, and the defaults of its architecture."""

    name: str
    """The file, for messages."""
    model_type: str
    data: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """Values of the architecture's class where the file is silent."""
    assumed: dict[str, Any] = field(default_factory=dict)
    """Fields that the file does not have, with the defaults that were read."""

    def get(self, names: Names) -> Any:
        """Return a value, or the default of the architecture; None if there is none."""
        several = (names,) if isinstance(names, str) else names
        for name in several:
            if name in self.data:
                return self.data[name]
        known = next((name for name in several if name in self.defaults), None)
        if known is None:
            return None
        value = self.defaults[known]
        if value is not None and value is not False:
            self.assumed[known] = value
        return value

    def count(self, names: Names, least: int = 1) -> int:
        """Return a whole number.

        Raises:
            SpecError: it is missing, or no whole number from `least` to ten million.
        """
        value = self.get(names)
        if value is None:
            raise self.error(names, "missing; expected a whole number")
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= MAX_COUNT:
            expected = f"expected a whole number from {least} to {MAX_COUNT:,}"
            raise self.error(names, f"{shown(str(value))}: {expected}")
        return int(value)

    def count_or(self, names: Names, other: int) -> int:
        """Return a whole number, or another one where there is none."""
        return other if self.get(names) is None else self.count(names, least=0)

    def flag(self, names: Names) -> bool:
        """Return true or false; a value that is not there is false.

        Raises:
            SpecError: it is something else.
        """
        value = self.get(names)
        if value is not None and not isinstance(value, bool):
            raise self.error(names, f"{shown(str(value))}: expected true or false")
        return bool(value)

    def words(
        self, names: Names, layers: int, accepted: Mapping[str, str]
    ) -> list[str]:
        """Return a word per layer, in our words; an empty list where there are none.

        Raises:
            SpecError: there are more or fewer words than layers, or unknown ones.
        """
        value = self.get(names)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) < layers:
            raise self.error(names, f"expected a list with a word for {layers} layers")
        for word in value[:layers]:
            if not isinstance(word, str) or word not in accepted:
                known = ", ".join(dict.fromkeys(accepted))
                told = f"{shown(str(word))} is not supported; accepted: {known}"
                raise self.error(names, told)
        return [accepted[word] for word in value[:layers]]

    def numbers(self, names: Names) -> list[int]:
        """Return a list of whole numbers, empty where there is none.

        Raises:
            SpecError: it is something else.
        """
        value = self.get(names)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            type(number) is int for number in value
        ):
            raise self.error(names, "expected a list of whole numbers")
        return list(value)

    def layers(self, names: Names = "num_hidden_layers") -> int:
        """Return the number of layers.

        Raises:
            SpecError: there are more than a model may have.
        """
        layers = self.count(names)
        if layers > MOST_LAYERS:
            raise self.error(names, f"{layers}: expected up to {MOST_LAYERS:,}")
        return layers

    def error(self, names: Names, told: str) -> SpecError:
        """Return an error that names the file and the field."""
        name = names if isinstance(names, str) else names[0]
        return SpecError(f"{self.name}: {name}: {told}")


Fields = dict[str, Any]
"""Fields of our model."""

Part = Callable[[Config], Fields]
"""Reads the fields of a part of our model, such as its experts."""

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
"""By field of our model, the field of the file in most architectures."""


@dataclass(frozen=True)
class Architecture:
    """How the config.json of one `model_type` maps to our model."""

    model_type: str
    defaults: Mapping[str, Any]
    """Values of the class of the architecture where the file is silent."""
    says: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our model that the architecture decides."""
    names: Mapping[str, Names] = field(default_factory=dict)
    """By field of our model, the field of the file, where it is not that of `NAMES`."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Fields of the file that must be absent, null or false, with their meaning."""
    parts: tuple[Part, ...] = ()
    """Read the rest of our model, one after the other."""

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
        for part in self.parts:
            fields |= part(config)
        return fields


LLAMA: Mapping[str, Any] = {"gated_mlp": True, "norm": "rmsnorm", "bias": "none"}
"""Fields of our model that most architectures since Llama share."""
