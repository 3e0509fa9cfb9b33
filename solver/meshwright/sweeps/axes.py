"""The axes of a sweep: which fields of a spec take which values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from meshwright.errors import SpecError
from meshwright.reading.document import Document, FieldPath, Where, field_path
from meshwright.reading.messages import shown
from meshwright.sweeps.row import Value

MOST_VALUES = 100_000
"""Most values of all axes together; more are taken for a slip."""

LARGEST = 10**18
"""Largest number in a series."""


class Setting(NamedTuple):
    """A field of the spec, the value that a sweep gives it, and where that stands."""

    name: str
    path: FieldPath
    value: Any
    where: Where

    @property
    def label(self) -> Value:
        """Return the value as rows and tables show it."""
        value = self.value
        is_plain = value is None or isinstance(value, str | int | float | bool)
        return value if is_plain else json.dumps(value)


Axis = tuple[tuple[Setting, ...], ...]
"""The points of an axis; each sets one field, or the fields of `zip` together."""


def read_axes(document: Document) -> list[Axis]:
    """Return the axes of a sweep file: one for each field of `sweep`, one for `zip`.

    Raises:
        SpecError: names the line, the field, the value and what is accepted.
    """
    axes: list[Axis] = [
        tuple((setting,) for setting in column)
        for column in _columns(document, "sweep")
    ]
    zipped = _columns(document, "zip")
    for column in zipped[1:]:
        if len(column) != len(zipped[0]):
            expected, found = zipped[0][0], column[0]
            raise SpecError(
                f"{found.where}: zip.{found.name}: {len(column)} values; expected "
                f"{len(zipped[0])}, as {expected.name} has"
            )
    if zipped:
        axes.append(tuple(zip(*zipped, strict=True)))
    return axes


def _columns(document: Document, section: str) -> list[list[Setting]]:
    fields = document.data.get(section)
    if fields is None:
        return []
    if not isinstance(fields, dict):
        at = document.where((section,))
        raise SpecError(
            f"{at}: {section}: {shown(fields)}: expected fields of a spec with lists "
            "of values, such as cluster.count: [1, 2, 4]"
        )
    columns: list[list[Setting]] = []
    for name in fields:
        columns.append(list(_settings(document, section, name)))
        if sum(map(len, columns)) > MOST_VALUES:
            at, most = document.where((section, name)), f"{MOST_VALUES:,}"
            raise SpecError(f"{at}: {section}: expected at most {most} values in all")
    return columns


def _settings(document: Document, section: str, name: str) -> Iterator[Setting]:
    """Yield one setting of a field for each value that the sweep gives it."""
    where = document.where((section, name))
    path = field_path(name)
    if path is None:
        raise SpecError(
            f"{where}: {section}: {shown(name)}: expected the path of a field, such "
            "as training.seq_len or cluster.topology.levels[0].gb_s"
        )
    values = document.data[section][name]
    for index, value in enumerate(_values(f"{where}: {section}.{name}", values)):
        at = document.where((section, name, index)) if values is not None else where
        yield Setting(name, path, value, at)


def _values(place: str, values: Any) -> list[Any]:
    """Return the values of an axis, with a series such as `log2` spelled out."""
    if isinstance(values, dict) and len(values) == 1:
        ((kind, numbers),) = values.items()
        if kind in _SERIES:
            return _series(f"{place}.{kind}", kind, numbers)
    if not isinstance(values, list) or not values:
        raise SpecError(
            f"{place}: {shown(values)}: expected a list of values, "
            "{log2: [LOW, HIGH]} or {range: [LOW, HIGH, STEP]}"
        )
    return values


def _series(place: str, kind: str, numbers: Any) -> list[int]:
    sizes, accepted, spell_out = _SERIES[kind]
    is_list = isinstance(numbers, list) and len(numbers) in sizes
    if not is_list or not all(_is_count(number) for number in numbers):
        raise SpecError(f"{place}: {shown(numbers)}: expected {accepted}")
    if numbers[0] > numbers[1]:
        raise SpecError(f"{place}: {shown(numbers)}: LOW is above HIGH")
    values = spell_out(*numbers)
    if len(values) > MOST_VALUES:
        most = f"expected at most {MOST_VALUES:,}"
        raise SpecError(f"{place}: {shown(numbers)}: {len(values):,} values; {most}")
    return list(values)


def _is_count(value: Any) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and 0 < value <= LARGEST


def _doublings(low: int, high: int) -> list[int]:
    """Return LOW, its double, and so on, up to HIGH."""
    return [low << power for power in range((high // low).bit_length())]


def _steps(low: int, high: int, step: int = 1) -> range:
    return range(low, high + 1, step)


_SERIES: dict[str, tuple[tuple[int, ...], str, Callable[..., Any]]] = {
    "log2": ((2,), "[LOW, HIGH], whole numbers above 0, up to 1e18", _doublings),
    "range": ((2, 3), "[LOW, HIGH] or [LOW, HIGH, STEP], above 0, up to 1e18", _steps),
}
"""By kind of series: how many numbers define it, which they are, its values."""
