"""Columns: the arrays, one entry per row, that formulas compute with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

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


Index = Ints | slice | tuple[slice | None, ...]


@dataclass(frozen=True)
class Columns:
    """A table of columns of equal length.

    A subclass is a frozen dataclass whose fields are arrays, parts, other tables, or
    tuples of those.
    """

    def __len__(self) -> int:
        """Return the number of rows."""
        # This is a hot path too: a loop is faster than a generator.
        for column in self.__dict__.values():
            if type(column) is not dict:
                return len(column)
        raise TypeError(type(self))

    @property
    def columns(self) -> list[Any]:
        """Return the columns in the order of the fields."""
        return [getattr(self, name) for name in self.__dataclass_fields__]

    def take(self, index: Index) -> Self:
        """Return the rows of `index`."""
        # This is a hot path: plain arrays are indexed without a call.
        rows = {
            name: column[index] if type(column) is np.ndarray else take(column, index)
            for name, column in self.__dict__.items()
        }
        # The constructor of a frozen dataclass takes longer than all of the above.
        result = object.__new__(type(self))
        result.__dict__.update(rows)
        return result

    def take_with(self, index: Index, **others: Any) -> Self:
        """Return the rows of `index` with other columns in place of some.

        Columns that are replaced are not copied first.
        """
        rows = {
            name: take(column, index)
            for name, column in self.__dict__.items()
            if name not in others
        }
        return type(self)(**rows, **others)

    @classmethod
    def joined(cls, tables: Sequence[Self]) -> Self:
        """Return the rows of all tables, one after another."""
        names = cls.__dataclass_fields__
        return cls(
            **{n: joined([getattr(table, n) for table in tables]) for n in names}
        )

    def distinct(self) -> tuple[Self, Index]:
        """Return the distinct rows, and which of them each row is."""
        return self.distinct_in(self.columns)

    def distinct_in(self, columns: list[Ints | Bools]) -> tuple[Self, Index]:
        """Return rows that differ in some columns, and which of them each row is."""
        if len(self) <= FEW:
            return self, slice(None)
        one_of_each, inverse = distinct(columns)
        return self.take(one_of_each), inverse


def take(columns: T, index: Index) -> T:
    """Return rows of columns: of an array, of parts, of a tuple, or of `Columns`."""
    whole: Any = columns
    if type(whole) is np.ndarray:
        if whole.ndim > 1 and isinstance(index, np.ndarray):
            # `take` copies each row of a 2-D array as a whole, which is faster.
            return cast("T", whole.take(index, axis=0))
        return cast("T", whole[index])
    if isinstance(whole, dict):
        return cast("T", {name: take(part, index) for name, part in whole.items()})
    if isinstance(whole, tuple):
        return cast("T", tuple(take(part, index) for part in whole))
    return cast("T", whole.take(index))


def joined(tables: Sequence[T]) -> T:
    """Return the rows of all columns, one after another; types as in `take`."""
    every: Any = tables
    if isinstance(every[0], np.ndarray):
        return cast("T", np.concatenate(every))
    if isinstance(every[0], dict):
        return cast("T", {n: joined([parts[n] for parts in every]) for n in every[0]})
    if isinstance(every[0], tuple):
        return cast("T", tuple(map(joined, zip(*every, strict=True))))
    return cast("T", every[0].joined(every))


def ranges(start: Ints, length: Ints) -> Ints:
    """Return start, start + 1, ... for `length` entries, one range after another."""
    before = np.cumsum(length) - length
    offset = np.repeat(start - before, length)
    return np.asarray(np.arange(int(length.sum())) + offset)


SPARSE = 16
"""Ratio of the largest number to the entries above which sorting beats counting."""


def representatives(number: Ints) -> tuple[Ints, Ints]:
    """Return the index of one entry of each number, and which of them each entry has.

    Numbers are not negative.
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
"""Number of rows up to which looking for equal rows takes longer than it saves."""


def distinct(columns: list[Ints | Bools], few: int = FEW) -> tuple[Ints, Ints]:
    """Return the index of one of each set of equal rows, and the set of each row.

    Of up to `few` rows each counts as distinct.
    """
    if len(columns[0]) <= few:
        every = np.arange(len(columns[0]))
        return every, every
    # One number a row, whose digits are the values; counted afresh before it is long.
    code, size = np.zeros(1, dtype=np.int64), 1
    for column in columns:
        value = column.astype(np.int64)
        values = int(value.max(initial=0)) + 1
        if size * values > len(column):
            value, values = _compressed(value)
            code, size = _compressed(code)
        code, size = code * values + value, size * values
    return representatives(code)


def _compressed(number: Ints) -> tuple[Ints, int]:
    """Return numbers without gaps in the same order, and how many differ."""
    one_of_each, inverse = representatives(number)
    return inverse, len(one_of_each)


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
