"""What an import hands over: topology fields, and every assumption in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Imported:
    """Fields of a topology in the form of its YAML, without `gpu` and `name`."""

    fields: dict[str, Any]
    notes: tuple[str, ...] = ()
    """One plain sentence for each thing that the file does not say."""
    guess: str = ""
    """The note on what the uplinks of machines tell better, where they are known."""
    are_rates_guessed: bool = False
    """Whether levels have no bandwidth of their own."""


def unique(notes: list[str]) -> tuple[str, ...]:
    """Return the notes in order, each once."""
    return tuple(dict.fromkeys(notes))
