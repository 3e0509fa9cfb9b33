"""The column types that cost formulas pass around."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

T = TypeVar("T")

Parts = dict[str, Floats]
"""A quantity by named part; the parts add up to it."""


def total(parts: Parts) -> Floats:
    """Return the sum of the parts."""
    return np.asarray(sum(parts.values()), dtype=np.float64)


def take(columns: T, index: Ints) -> T:
    """Return the rows of `index` of a dataclass of columns and parts."""
    taken: dict[str, Any] = {}
    for name, value in vars(columns).items():
        if isinstance(value, dict):
            taken[name] = {part: column[index] for part, column in value.items()}
        else:
            taken[name] = value[index]
    return type(columns)(**taken)


def where(condition: Bools, parts: Parts) -> Parts:
    """Return the parts where the condition holds, 0 elsewhere."""
    return {name: np.where(condition, part, 0.0) for name, part in parts.items()}


def scaled(parts: Parts, factor: Floats | Ints | float) -> Parts:
    """Return every part times a factor."""
    return {name: part * factor for name, part in parts.items()}


def added(summands: Iterable[Parts]) -> Parts:
    """Return the sum, part by part."""
    result: Parts = {}
    for parts in summands:
        for name, part in parts.items():
            result[name] = result[name] + part if name in result else part
    return result
