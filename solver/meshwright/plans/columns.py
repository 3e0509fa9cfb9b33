"""The column types that cost formulas pass around."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

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


Index = Ints | slice | tuple[slice, None]


def take(columns: T, index: Index) -> T:
    """Return rows of columns: of an array, of parts, or of a dataclass of them.

    What is one array under several names is taken once, and stays one.
    """
    if isinstance(columns, np.ndarray):
        return cast("T", _rows_of(columns, index))
    if isinstance(columns, tuple):
        return cast("T", tuple(take(own, index) for own in columns))
    is_parts = isinstance(columns, dict)
    named: dict[str, Any] = cast("Any", columns) if is_parts else vars(columns)
    taken: dict[int, Any] = {}
    rows = {}
    for name, own in named.items():
        key = id(own)
        if key not in taken:
            taken[key] = take(own, index)
        rows[name] = taken[key]
    if is_parts:
        return cast("T", rows)
    # Constructors of frozen dataclasses take longer than all of the above.
    result = object.__new__(type(columns))
    result.__dict__.update(rows)
    return result


def _rows_of(array: NDArray[Any], index: Index) -> NDArray[Any]:
    """Return rows of an array; numbered rows of a table are copied as a whole."""
    if array.ndim > 1 and isinstance(index, np.ndarray):
        return array.take(index, axis=0)
    return array[index]


def joined(tables: list[T]) -> T:
    """Return the rows of all of some columns: arrays, parts, or dataclasses of them."""
    first: Any = tables[0]
    if isinstance(first, np.ndarray):
        return cast("T", np.concatenate(cast("list[Any]", tables)))
    if isinstance(first, dict):
        own: list[Any] = list(tables)
        return cast("T", {n: joined([parts[n] for parts in own]) for n in first})
    if isinstance(first, tuple):
        every = zip(*cast("list[Any]", tables), strict=True)
        return cast("T", tuple(joined(list(own)) for own in every))
    whole = {n: joined([getattr(table, n) for table in tables]) for n in vars(first)}
    return cast("T", type(first)(**whole))


def ranges(start: Ints, length: Ints) -> Ints:
    """Return start, start + 1, ... for `length` entries, one range after another."""
    before = np.cumsum(length) - length
    offset = np.repeat(start - before, length)
    return np.asarray(np.arange(int(length.sum())) + offset)


SPARSE = 16
"""Times as many numbers as entries, which take longer to count than to sort."""


def representatives(number: Ints) -> tuple[Ints, Ints]:
    """Return one entry of each number that occurs, and which of them each entry has.

    Numbers are not negative; those much larger than there are entries are sorted.
    """
    most = int(number.max(initial=-1)) + 1
    if most > SPARSE * len(number):
        distinct, inverse = np.unique(number, return_inverse=True)
        count = len(distinct)
    else:
        occurs = np.zeros(most, dtype=bool)
        occurs[number] = True
        inverse, count = (np.cumsum(occurs) - 1)[number], int(occurs.sum())
    one_of_each = np.empty(count, dtype=np.int64)
    one_of_each[inverse] = np.arange(len(number))
    return one_of_each, inverse


FEW = 1_000
"""Rows that are sooner worked on than told apart."""


def distinct(columns: list[Ints | Bools]) -> tuple[Ints, Ints]:
    """Return one row of each kind that occurs, and which kind each row is.

    Few rows each count as a kind of their own.
    """
    if len(columns[0]) <= FEW:
        each = np.arange(len(columns[0]))
        return each, each
    code = np.zeros(1, dtype=np.int64)
    for column in columns:
        _, kind = representatives(column.astype(np.int64))
        _, code = representatives(code * (int(kind.max(initial=0)) + 1) + kind)
    return representatives(code)


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
