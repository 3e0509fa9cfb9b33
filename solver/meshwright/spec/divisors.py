"""The divisors of a number, and which would do where a number does not divide."""

from __future__ import annotations

import math


def nearest(value: int, *wholes: int) -> str:
    """Return the numbers next to `value` that divide all of `wholes`, in words.

    As in '50 and 125 do', to follow 'does not divide 1000;'.
    """
    dividing = divisors(math.gcd(*wholes))
    below = [d for d in dividing if d < value][-1:]
    above = [d for d in dividing if d > value][:1]
    verb = "do" if below and above else "does"
    return f"{' and '.join(map(str, (*below, *above)))} {verb}"


def divisors(whole: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(whole) + 1) if whole % d == 0]
    return sorted({*small, *(whole // d for d in small)})
