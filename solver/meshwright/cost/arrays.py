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


def joined(tables: list[T]) -> T:
    """Return the rows of all of some dataclasses of columns and parts."""

    def put(columns: list[Any]) -> Any:
        if not isinstance(columns[0], dict):
            return np.concatenate(columns)
        return {name: put([own[name] for own in columns]) for name in columns[0]}

    names = vars(tables[0])
    whole = {name: put([getattr(own, name) for own in tables]) for name in names}
    return type(tables[0])(**whole)


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
