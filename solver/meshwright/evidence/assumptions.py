"""What a publication leaves out: assumed, and said; or a reason not to price."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T")
Part = TypeVar("Part", bound=BaseModel)


class Unpriced(Exception):
    """Why a run cannot be priced; the message is shown with the run."""


@dataclass
class Assumptions:
    """Fields that were filled in, with the value taken."""

    fields: dict[str, object] = field(default_factory=dict)

    def value(self, name: str, value: T) -> T:
        """Note a field as assumed and return the value taken for it."""
        self.fields[name] = value
        return value


def checked(schema: type[Part], field: str, data: object) -> Part:
    """Return a part of a spec, which stands in `field` of it.

    Raises:
        Unpriced: no spec has such a part; names the first thing that is wrong.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(filter(None, (field, *map(str, first["loc"]))))
        told = first["msg"].removeprefix("Value error, ")
        raise Unpriced(f"{path}: {told}") from None
