"""What all spec models share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class SpecModel(BaseModel):
    """A frozen part of a spec that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _count(low: int, high: int) -> object:
    return Field(strict=True, ge=low, le=high)


Count = Annotated[int, _count(1, 10_000_000)]
"""A whole number from 1 to ten million; text and fractions are refused."""

CountOrNone = Annotated[int, _count(0, 10_000_000)]
"""A whole number from 0 to ten million."""

LayerCount = Annotated[int, _count(1, 1_000)]
"""A number of transformer layers: the deepest published model has a few hundred."""

Flag = Annotated[bool, Field(strict=True)]
"""true or false, as YAML writes them."""
