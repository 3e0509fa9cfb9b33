"""The divisors of a number, and those nearest to a number that is none."""

from __future__ import annotations

import math
from collections.abc import Iterable


def nearest(value: int, *wholes: int) -> str:
    """Return the numbers next to `value` that divide all of `wholes`, in words.

    As in '50 and 125 do', to follow 'does not divide 1000;'.
    """
    return nearest_of(value, divisors(math.gcd(*wholes)))


def nearest_of(value: int, accepted: Iterable[int]) -> str:
    """Return the accepted numbers next to `value`, in the words of `nearest`."""
    ascending = sorted(accepted)
    below = [divisor for divisor in ascending if divisor < value][-1:]
    above = [divisor for divisor in ascending if divisor > value][:1]
    verb = "do" if below and above else "does"
    return f"{' and '.join(map(str, (*below, *above)))} {verb}"


def divisors(whole: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(whole) + 1) if whole % d == 0]
    return sorted({*small, *(whole // d for d in small)})
