"""The values of a config.json, checked as read, and how an architecture maps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.text import mapping, shown
from meshwright.spec.base import MAX_COUNT

MOST_LAYERS = 1_000

MOST_NUMBER = 1e12
"""Above every base, factor and count of positions."""

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
        """Return true or false; a value that is not there is false."""
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
        """Return a list of whole numbers, empty where there is none."""
        value = self.get(names)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            type(number) is int for number in value
        ):
            raise self.error(names, "expected a list of whole numbers")
        return list(value)

    def layers(self, names: Names = "num_hidden_layers") -> int:
        """Return the number of layers."""
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
        return {**fields, "details": details(config)}


EPSILONS = (
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon",
    "norm_eps", "norm_epsilon",
)  # fmt: skip

ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "relu2": "squared_relu",
    "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
}  # fmt: skip
"""Words of files for activations; kinds of gelu differ in their last digits."""

STRETCHES = {"low_freq_factor": "low_freq", "high_freq_factor": "high_freq"}
STRETCHES |= {name: name for name in ("beta_fast", "beta_slow", "mscale")}
STRETCHES |= {"factor": "factor", "mscale_all_dim": "mscale_all_dim"}
STRETCHES |= {"original_max_position_embeddings": "original_positions"}
"""Numbers of a stretch of positions, and the fields that they are."""


def details(config: Config) -> Fields:
    """Return the fields of a file that exports need and no price does."""
    data, found, rope = config.data, Fields(), _rope(config)
    numbers = {
        "norm_eps": next((data[name] for name in EPSILONS if name in data), None),
        "rope_theta": data.get("rope_theta", rope.get("rope_theta")),
        "rope_share": data.get("partial_rotary_factor", data.get("rotary_pct")),
        "router_scale": data.get("routed_scaling_factor"),
    }
    for name, value in numbers.items():
        if value is not None:
            found[name] = _number(config, name, value)
    if further := further_layers(config):
        found["mtp_layers"] = further
    word = data.get("hidden_act") or data.get("activation_function")
    if (function := ACTIVATIONS.get(str(word))) is not None:
        found["activation"] = function
    if data.get("scoring_func") in ("softmax", "sigmoid"):
        found["router_score"] = data["scoring_func"]
    if isinstance(data.get("norm_topk_prob"), bool):
        found["router_sums_to_one"] = data["norm_topk_prob"]
    if (form := _form(rope)) in FORMS:
        stretch: Fields = {"form": form}
        for name, field_name in STRETCHES.items():
            if (value := rope.get(name)) is not None:
                stretch[field_name] = _number(config, name, value)
        if {"factor", "original_positions"} <= stretch.keys():
            found["rope_scaling"] = stretch
    return found


def further_layers(config: Config) -> int:
    """Return how many layers of the checkpoint predict further tokens."""
    told = next((config.data[name] for name in FURTHER if name in config.data), 0)
    return int(told) if isinstance(told, int) and 0 < told <= MAX_COUNT else 0


FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers")
"""Names of the number of layers that predict further tokens."""

FORMS = ("llama3", "yarn")


def unread_stretch(config: Config) -> str | None:
    """Return the word for a stretch of positions that no field of ours holds."""
    form = _form(_rope(config))
    return None if form in (None, "default", *FORMS) else shown(str(form))


def _rope(config: Config) -> Mapping[str, Any]:
    data = config.data
    return mapping(data.get("rope_parameters")) or mapping(data.get("rope_scaling"))


def _form(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type"))


def _number(config: Config, name: str, value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < MOST_NUMBER:
        expected = "expected a number above 0"
        raise config.error(name, f"{shown(str(value))}: {expected}")
    return value
