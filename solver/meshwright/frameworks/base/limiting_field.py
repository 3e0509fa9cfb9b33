"""Fields of `Framework` that say which plans a framework launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIMITS = "limits"
"""Key of a field's metadata under which its `LimitingField` stands."""


@dataclass(frozen=True)
class LimitingField:
    """How a field limits which plans are launched, and its value without the limit.

    The field is lifted together with the rules that have its name, and their sentences
    stand for its own.
    """

    name: str
    sentence: Callable[[Any], str]
    """The limit in words, from the value that a framework has."""
    lifted: Callable[[Any, Any], Any]
    """The value without the limit, from that of a framework and that of `ideal`."""


def limiting(
    name: str,
    sentence: Callable[[Any], str],
    lifted: Callable[[Any, Any], Any] = lambda _own, ideal: ideal,
) -> dict[str, LimitingField]:
    """Return the metadata of a field that limits which plans are launched."""
    return {LIMITS: LimitingField(name, sentence, lifted)}
