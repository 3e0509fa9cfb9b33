"""The rank of a plan among all that fit, as data."""

from __future__ import annotations

from pydantic import Field

from meshwright.spec.base import SpecModel


class Rank(SpecModel):
    """The rank of a plan among all skeletons that fit; 1 is the fastest.

    It is known to lie between two numbers.
    """

    first: int = Field(description="The best rank that is possible.")
    last: int = Field(description="The worst rank that is possible.")
    of: int = Field(description="Skeletons that fit, on their best mesh and split.")
    beaten: float = Field(description="Least share of them that are slower.")
