"""Why a plan cannot be launched as it is printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.errors import SpecError


@dataclass(frozen=True)
class Refusal:
    """A field that a framework cannot be told, and the check that would fail."""

    field: str
    sentence: str
    check: str
    """File and name, in the framework's source, of what rejects it or has no word."""

    def __str__(self) -> str:
        """Return the refusal as one line."""
        return f"{self.field} {self.sentence} ({self.check})"


class NotLaunchableError(SpecError):
    """A plan that the framework cannot launch as it is printed."""

    def __init__(self, title: str, refusals: Iterable[Refusal]) -> None:
        """Say which fields, and which checks of the framework would fail."""
        self.refusals = tuple(refusals)
        lines = "\n  ".join(map(str, self.refusals))
        super().__init__(f"plan: cannot be launched by {title} as printed:\n  {lines}")
