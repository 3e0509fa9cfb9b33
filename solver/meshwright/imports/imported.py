"""The result of an import: fields of a topology, and every assumption in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
