"""What a publication leaves out: assumed, and said; or a reason not to price."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


class Unpriced(Exception):
    """Why a run cannot be priced; the message is shown with the run."""


@dataclass
class Assumed:
    """Fields that were filled in, with the value taken."""

    fields: dict[str, object] = field(default_factory=dict)

    def value(self, name: str, value: T) -> T:
        """Note a field as assumed and return the value taken for it."""
        self.fields[name] = value
        return value
