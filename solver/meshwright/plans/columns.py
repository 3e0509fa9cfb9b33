"""The column types that cost formulas pass around."""

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


Index = Ints | slice | tuple[slice, None]


@dataclass(frozen=True)
class Columns:
    """Columns of equal length: what stands in one row of each belongs together.

    A subclass is a frozen dataclass whose fields are arrays, parts, further columns, or
    tuples of those.
    """

    def __len__(self) -> int:
        """Return the number of rows."""
        return next(len(own) for own in self.columns if not isinstance(own, dict))

    @property
    def columns(self) -> list[Any]:
        """Return the columns in the order of the fields."""
        return [getattr(self, name) for name in self.__dataclass_fields__]

    def take(self, index: Index) -> Self:
        """Return the rows of `index`."""
        # This is most of what columns cost: arrays are not worth a call each.
        rows = {
            name: own[index] if type(own) is np.ndarray else take(own, index)
            for name, own in self.__dict__.items()
        }
        # Constructors of frozen dataclasses take longer than all of the above.
        result = object.__new__(type(self))
        result.__dict__.update(rows)
        return result

    @classmethod
    def joined(cls, tables: Sequence[Self]) -> Self:
        """Return the rows of all tables, one after another."""
        names = cls.__dataclass_fields__
        return cls(**{n: joined([getattr(own, n) for own in tables]) for n in names})

    def distinct(self) -> tuple[Self, Ints]:
        """Return the distinct rows of plain columns, and which of them each row is."""
        one_of_each, inverse = distinct(self.columns)
        return self.take(one_of_each), inverse


def take(columns: T, index: Index) -> T:
    """Return rows of columns: of an array, of parts, of a tuple, or of `Columns`."""
    own: Any = columns
    if type(own) is np.ndarray:
        if own.ndim > 1 and isinstance(index, np.ndarray):
            # Numbered rows of a table are copied as a whole.
            return cast("T", own.take(index, axis=0))
        return cast("T", own[index])
    if isinstance(own, dict):
        return cast("T", {name: take(part, index) for name, part in own.items()})
    if isinstance(own, tuple):
        return cast("T", tuple(take(part, index) for part in own))
    return cast("T", own.take(index))


def joined(tables: Sequence[T]) -> T:
    """Return the rows of all of some columns, of one kind that `take` knows."""
    own: Any = tables
    if isinstance(own[0], np.ndarray):
        return cast("T", np.concatenate(own))
    if isinstance(own[0], dict):
        return cast("T", {n: joined([parts[n] for parts in own]) for n in own[0]})
    if isinstance(own[0], tuple):
        return cast("T", tuple(map(joined, zip(*own, strict=True))))
    return cast("T", own[0].joined(own))


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
