"""Quantities with units: a bare number is in the field's own unit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

GIB = 2.0**30

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

LATENCY_UNITS = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
"""Factor to microseconds."""

_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


def _parser(units: dict[str, float], default: str) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(
                f"expected a number in {default} or text like '1 {default}'"
            )
        if not isinstance(value, str):
            return float(value)
        match = _QUANTITY.fullmatch(value)
        unit = match[2] or default if match else ""
        if match is None or unit not in units:
            raise ValueError(
                f"expected a number in {default} or with one of the units "
                + ", ".join(units)
            )
        return float(match[1]) * units[unit]

    return parse


_POSITIVE = Field(gt=0, allow_inf_nan=False)

GiB = Annotated[float, BeforeValidator(_parser(MEMORY_UNITS, "GiB")), _POSITIVE]
GBPerS = Annotated[float, BeforeValidator(_parser(BANDWIDTH_UNITS, "GB/s")), _POSITIVE]
Micros = Annotated[
    float,
    BeforeValidator(_parser(LATENCY_UNITS, "us")),
    Field(ge=0, allow_inf_nan=False),
]
