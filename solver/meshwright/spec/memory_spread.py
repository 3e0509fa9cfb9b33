"""How far predicted memory is from what runs really need, and what that leaves usable.

The ratio of the need to the prediction is taken as lognormal: its logarithm has a mean,
the bias, and a standard deviation, sigma. An optimizer fills memory up to its limit, so
the limit decides how often its plans run out of memory.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field

from meshwright.spec.base import CountOrNone, SpecModel, number

Basis = Literal["calibrated", "known", "pooled", "stated"]
"""Where a spread is from: runs of the user's own, published runs of the same framework,
published runs of all frameworks, or an estimate."""

Bias = Annotated[float, number("from -1 to 1", lambda x: -1 <= x <= 1)]

Sigma = Annotated[float, number("from 0.001 to 1", lambda x: 1e-3 <= x <= 1)]

_NORMAL = NormalDist()


def normal_cdf(value: float) -> float:
    """Return how likely a standard normal number is below a value.

    `NormalDist.cdf` has other last digits in some versions of Python.
    """
    return math.erfc(-value / math.sqrt(2)) / 2


class MemorySpread(SpecModel):
    """The spread of ln(memory that runs need / predicted memory)."""

    bias: Bias = Field(0.0, description="Mean; above 0 runs need more than predicted.")
    sigma: Sigma = Field(description="Standard deviation.")
    basis: Basis = "pooled"
    peaks: CountOrNone = Field(0, description="Measured peaks that it was fitted to.")
    labels: CountOrNone = Field(
        0, description="Runs of which only 'it fits' or 'out of memory' is known."
    )
    sources: dict[str, CountOrNone] = Field(
        default_factory=dict, description="Runs by source."
    )

    def usable_gib(self, card_gib: float, risk: float) -> float:
        """Return the most that a plan may be predicted to need, GiB.

        A plan predicted to need all of it runs out of memory with probability `risk`,
        or less: no plan may count on predictions that are too high, and use more than
        the card has.
        """
        margin = self.bias + _NORMAL.inv_cdf(1 - risk) * self.sigma
        return card_gib * math.exp(-max(margin, 0.0))

    def fit_probability(self, card_gib: float, needed_gib: float) -> float:
        """Return how likely a plan fits that is predicted to need so much, GiB."""
        if needed_gib <= 0:
            return 1.0
        left = math.log(card_gib / needed_gib)
        return normal_cdf((left - self.bias) / self.sigma)

    def risk_below(self, risk: float, needed_gib: float, less_gib: float) -> float:
        """Return the risk of a plan that needs less than one of a given risk does."""
        quantile = _NORMAL.inv_cdf(1 - risk)
        more = math.log(needed_gib / (needed_gib - less_gib))
        return 1 - normal_cdf(quantile + more / self.sigma)


GENERIC = MemorySpread(sigma=0.13)
"""The spread where no profile tells one: about that of one model of memory over the
versions of a framework, as published peaks show it."""
