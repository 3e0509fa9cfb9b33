"""The result of an import: fields of a topology and assumptions, and their YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from meshwright.escape import printable, printable_lines


@dataclass(frozen=True)
class Imported:
    """Fields of a topology in the form of its YAML, without `gpu` and `name`."""

    fields: dict[str, Any]
    notes: tuple[str, ...] = ()
    """One sentence for each value that the file does not have."""
    guess: str = ""
    """The note on assumed uplinks; it is dropped where the machine has uplinks."""
    are_rates_guessed: bool = False
    """Whether the file has no bandwidth of the levels."""


def unique(notes: list[str]) -> tuple[str, ...]:
    """Return the notes in order, each once."""
    return tuple(dict.fromkeys(notes))


WIDTH = 100
"""Columns of the data; every comment stays on one line."""


def as_yaml(made_from: str, notes: Iterable[str], data: dict[str, Any]) -> str:
    """Return data as YAML, below comments."""
    lines = [f"Made from {made_from}.", *notes]
    comments = "".join(f"# {printable(line)}\n" for line in lines)
    return comments + "".join(_field(name, value) for name, value in data.items())


def _field(name: str, value: Any) -> str:
    """Return a field as YAML; a list of mappings has one per line, where they fit."""
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return _dump({name: value}, None if isinstance(value, list | dict) else False)
    lines = [_dump([item], True).strip()[1:-1] for item in value]
    if max(map(len, lines)) > WIDTH:
        return _dump({name: value}, None)
    return f"{name}:\n" + "".join(f"- {line}\n" for line in lines)


def _dump(data: Any, style: bool | None) -> str:
    """Return data as YAML; characters that cannot be seen are escaped."""
    import yaml

    width = float("inf") if style else WIDTH
    form: dict[str, Any] = {"sort_keys": False, "default_flow_style": style}
    text = str(yaml.safe_dump(data, width=width, allow_unicode=True, **form))
    if printable_lines(text) == text:
        return text
    return str(yaml.safe_dump(data, width=width, **form))


def plain_data(value: Any) -> Any:
    """Return a value as YAML can hold it: dataclasses as dicts, sequences as lists.

    A key of two names becomes one text, 'GPU0 - GPU1'.
    """
    if is_dataclass(value):
        return {
            field.name: plain_data(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, Mapping):
        return {_key(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [plain_data(item) for item in sorted(value)]
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    return value


def _key(key: Any) -> Any:
    if isinstance(key, tuple | frozenset):
        return " - ".join(map(str, sorted(key) if isinstance(key, frozenset) else key))
    return key
