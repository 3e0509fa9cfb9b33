"""Quantities with units; a bare number is in the default unit of its field."""

from __future__ import annotations

import difflib
import math
import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from meshwright.spec.base import to_number

GIB = 2.0**30

HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S

MEMORY_UNITS = {
    "B": 1 / GIB,
    **{f"{p}B": 1e3**i / GIB for i, p in enumerate("KMGT", 1)},
    **{f"{p}iB": 1024.0**i / GIB for i, p in enumerate("KMGT", 1)},
}
"""Factor to GiB. GB is 1e9 bytes, GiB is 2**30."""

BANDWIDTH_UNITS = {
    **{f"{p}B/s": 1e3**i / 1e9 for i, p in enumerate("KMGT", 1)},
    "GiB/s": GIB / 1e9,
    **{
        f"{p}{bit}": 1e3**i / 8e9
        for i, p in enumerate("KMGT", 1)
        for bit in ("bit/s", "b/s", "bps")
    },
}
"""Factor to GB/s, 1e9 bytes per second. Gb/s, Gbit/s and Gbps are bits."""

LATENCY_UNITS = {
    "ns": 1e-3,
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs"), 1.0),
    "ms": 1e3,
    "s": 1e6,
}
"""Factor to microseconds; the micro sign and the Greek letter are both in use."""

DAY_UNITS = {
    **dict.fromkeys(("h", "hour", "hours"), 1 / 24),
    **dict.fromkeys(("d", "day", "days"), 1.0),
    **dict.fromkeys(("w", "week", "weeks"), 7.0),
}
"""Factor to days."""

LONGEST = 40
"""Most characters of a quantity."""

SMALLEST = 0.001
LARGEST = 1_000_000
"""Bounds far outside of real hardware, which keep times finite and comparable."""


def counted(count: int, name: str) -> str:
    """Return a number with what it counts, whose plural has an s."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def few_digits(value: float) -> str:
    """Return a number with three digits, or all of those before its point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*(\S*)\s*")


def _quantity(
    units: dict[str, float], default_unit: str, low: float
) -> BeforeValidator:
    def parse(value: object) -> float:
        number = _in_unit(value, units, default_unit)
        if not low <= number <= LARGEST:
            bounds = f"from {low:g} to {LARGEST:,}"
            raise ValueError(
                f"expected a number {bounds}, in {default_unit} or with a unit"
            )
        return number

    return BeforeValidator(parse)


def _written(units: dict[str, float], low: float) -> WithJsonSchema:
    """Return the schema of a quantity in files: a number, or text with a unit."""
    number = {"type": "number", "minimum": low, "maximum": LARGEST}
    unit = "|".join(map(re.escape, units))
    text = {"type": "string", "pattern": rf"^\s*{_NUMBER}\s*({unit})?\s*$"}
    return WithJsonSchema({"anyOf": [number, text]}, mode="validation")


def _in_unit(value: object, units: dict[str, float], default_unit: str) -> float:
    """Return a quantity in the default unit; NaN where it is no number."""
    if not isinstance(value, str):
        return _or_nan(to_number(value))
    match = _QUANTITY.fullmatch(value) if len(value) <= LONGEST else None
    if match is None:
        return math.nan
    unit = match[2] or default_unit
    if unit not in units:
        near = _near(unit, units)
        raise ValueError(f"unknown unit {unit!r}; {near}accepted: {', '.join(units)}")
    return _or_nan(to_number(match[1])) * units[unit]


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _near(unit: str, units: dict[str, float]) -> str:
    """Return a hint at the known unit that is spelled most like an unknown one."""
    folded = {known.lower(): known for known in reversed(units)}
    close = difflib.get_close_matches(unit.lower(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[close[0]]}? " if close else ""


GiB = Annotated[
    float, _quantity(MEMORY_UNITS, "GiB", SMALLEST), _written(MEMORY_UNITS, SMALLEST)
]
GBPerS = Annotated[
    float,
    _quantity(BANDWIDTH_UNITS, "GB/s", SMALLEST),
    _written(BANDWIDTH_UNITS, SMALLEST),
]
Micros = Annotated[float, _quantity(LATENCY_UNITS, "us", 0), _written(LATENCY_UNITS, 0)]
Days = Annotated[
    float, _quantity(DAY_UNITS, "days", SMALLEST), _written(DAY_UNITS, SMALLEST)
]
RATE_OR_ZERO = _written(BANDWIDTH_UNITS, 0)
"""The JSON Schema of a bandwidth that may be 0."""
