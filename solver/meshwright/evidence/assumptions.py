"""Assumptions where a publication is silent, or the reason not to price its run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T")
Part = TypeVar("Part", bound=BaseModel)


class Unpriced(Exception):
    """Raised when a run cannot be priced; the message is shown with the run."""


@dataclass
class Assumptions:
    """Fields that a publication leaves out, with the values assumed."""

    fields: dict[str, object] = field(default_factory=dict)

    def value(self, name: str, value: T) -> T:
        """Note the value assumed for a field, and return it."""
        self.fields[name] = value
        return value


def checked(schema: type[Part], field: str, data: object) -> Part:
    """Return a validated part of a spec, the one in `field`.

    Raises:
        Unpriced: the part is invalid; names the first thing that is wrong.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(filter(None, (field, *map(str, first["loc"]))))
        told = first["msg"].removeprefix("Value error, ")
        raise Unpriced(f"{path}: {told}") from None
