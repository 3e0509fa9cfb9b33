"""The best interval between checkpoints, and the goodput that failures leave.

Young 1974, 'A first order approximation to the optimum checkpoint interval'; Daly
2006, 'A higher order estimate of the optimum checkpoint interval for restart dumps'.
"""

from __future__ import annotations

import math

SHORT_S = 300.0
"""Below this interval a report says whether failures really ask for it."""

LITTLE = 0.01
"""Share of the time that an interval may lose before it is worth shortening."""

MOST_EXPONENT = 700.0
"""Largest exponent of e whose power is still a float."""


def young_s(stall_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between checkpoints: Young 1974, equation 1."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_s(stall_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between checkpoints: Daly 2006, equation 37."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    share = stall_s / (2 * mtbf_s)
    return young_s(stall_s, mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - stall_s


def goodput(
    interval_s: float, stall_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Return the useful share of the time where failures come at random.

    An interval of work and its checkpoint take M e^(R/M) (e^((tau + delta)/M) - 1)
    (Daly 2006, equation 20).
    """
    exponent = (interval_s + stall_s + restart_s) / mtbf_s
    if exponent > MOST_EXPONENT:
        return 0.0
    tries_s = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s)
    return interval_s / (mtbf_s * tries_s)
