"""config.json of a Hugging Face model, as the fields of our model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from meshwright.errors import SpecError
from meshwright.imports import hf_layers
from meshwright.imports.hf_config import (
    Architecture,
    Config,
    Fields,
    Part,
    further_layers,
    unread_stretch,
)
from meshwright.imports.registry import Importer
from meshwright.imports.text import shown
from meshwright.reading.yaml_and_csv import table_beside

MOST_CHARACTERS = 1_000_000
"""Most characters of a config; one with a scale for every tensor has some hundred
thousand."""

FAMILIES = table_beside(__file__, "hf_families.yaml")

TEXT_OF: Mapping[str, str] = FAMILIES["text_of"]
"""By other names, and of models that also read images, the architecture of the text."""


class Read(NamedTuple):
    """The fields of our model that a config describes, and notes on it."""

    fields: Fields
    notes: tuple[str, ...]


def parse(text: str, name: str) -> Read:
    """Return the model of a config.json.

    Raises:
        SpecError: it is no config, its architecture is unknown, or has what is not
            modelled; the message names the field.
    """
    data = _object(text, name)
    inner, outer = data.get("text_config"), str(data.get("model_type", ""))
    is_nested = isinstance(inner, dict)
    shared = {k: data[k] for k in ("tie_word_embeddings",) if k in data}
    fields = {**shared, **inner} if isinstance(inner, dict) else data
    given = fields.get("model_type") or TEXT_OF.get(outer, outer)
    found = _architecture(str(given), name, data)
    config = Config(name, found.model_type, fields, found.defaults)
    model = found.fields(config)
    return Read(model, tuple(_notes(config, data, is_nested)))


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise SpecError(f"{name}{line}: not JSON; expected a config.json") from None
    if not isinstance(data, dict):
        raise SpecError(f"{name}: expected a config.json, as a mapping")
    return data


def _architecture(model_type: str, name: str, data: Mapping[str, Any]) -> Architecture:
    known = architectures()
    found = known.get(TEXT_OF.get(model_type.lower(), model_type))
    if found is not None:
        return found
    accepted = ", ".join(sorted(known))
    if not model_type:
        raise SpecError(f"{name}: model_type: missing; supported: {accepted}")
    named = data.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    also = f" ({shown(str(first))})" if first else ""
    raise SpecError(
        f"{name}: model_type: {shown(model_type)}{also} is not supported; supported: "
        f"{accepted}"
    )


@cache
def architectures() -> Mapping[str, Architecture]:
    """Return all architectures by the name that files have for them."""
    told = FAMILIES["architectures"]
    return {
        name: Architecture(
            name, **entry | {"parts": tuple(map(_part, entry.get("parts", ())))}
        )
        for name, entry in told.items()
    }


def _part(told: str | Mapping[str, Mapping[str, Any]]) -> Part:
    """Return a part by its name in `hf_layers.py`, or as its arguments make it."""
    if isinstance(told, str):
        found: Part = getattr(hf_layers, told)
        return found
    ((name, arguments),) = told.items()
    made: Part = getattr(hf_layers, name)(**arguments)
    return made


def _notes(config: Config, data: Mapping[str, Any], is_nested: bool) -> list[str]:
    notes = []
    if config.assumed:
        said = ", ".join(f"{name} {value}" for name, value in config.assumed.items())
        notes.append(
            f"The file leaves out: {said}; these are the defaults of "
            f"{config.model_type}."
        )
    if is_nested or "vision_config" in data:
        notes.append(
            "The language model alone; parts that read images or sound are left out."
        )
    if form := unread_stretch(config):
        notes.append(f"Positions are stretched by {form}, which no export writes.")
    if count := further_layers(config):
        notes.append(
            f"{count} more layers of the checkpoint predict further tokens, and are "
            f"left out; where they are trained, say model.mtp_layers: {count}."
        )
    return notes


IMPORTERS = {
    "hf": Importer(
        sign=r"\A\s*\{[\s\S]*\"(model_type|architectures)\"\s*:",
        parse=parse,
        most_characters=MOST_CHARACTERS,
    ),
}
