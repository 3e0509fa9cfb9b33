"""The axes of a sweep: which fields of a spec take which values."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from meshwright.errors import MeshwrightError, SpecError
from meshwright.imports.registry import kinds
from meshwright.loading.load import open_sections, refuse_inference, resolve_names
from meshwright.reading.document import (
    DISAGREEMENT,
    FOLLOWS,
    Document,
    FieldPath,
    Where,
    explain,
    field_path,
    shown,
)
from meshwright.spec.spec import Spec
from meshwright.sweeps.cases import Filter, Value

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

_SECTIONS = ("training", "limits", "pins", "run")
"""Sections that a setting may add to a base that lacks them."""

_RESOLVED = {"preset", "topology", "machine", "gpu", *kinds("machines", "fabrics")}
"""Fields of a cluster or model that name a file; all others are set after it."""

_EITHER = {"machine": "topology", "topology": "machine"}
"""Fields of a cluster of which one replaces the other."""


class InconsistentSettings(MeshwrightError):
    """Settings that are valid one by one and contradict each other."""


class Builder:
    """Builds specs of one base."""

    def __init__(self, base: Document, notes: list[str]) -> None:
        """Take a base as it was written.

        Args:
            base: The fields of a spec, names unresolved.
            notes: Gets the assumptions made where an imported file is silent.
        """
        open_sections(base)
        self._base = base
        self._notes = notes
        self._resolved: dict[str, Document] = {}

    def document(self, settings: Sequence[Setting]) -> Document:
        """Return the base with settings, all names resolved.

        Raises:
            SpecError: a name is unknown, or a setting is no field of the base.
        """
        names = [setting for setting in settings if _is_name(setting.path)]
        resolved = self._resolve(sorted(names, key=lambda setting: len(setting.path)))
        data, places = resolved.data, {}
        for setting in settings:
            if setting not in names:
                data = _with(data, setting.path, setting)
                places[setting.path] = setting.where
        return replace(resolved, data=data, places=resolved.places | places)

    def spec(self, settings: Sequence[Setting]) -> Spec:
        """Return the base with settings as a spec.

        Raises:
            SpecError: a setting is wrong by itself.
            InconsistentSettings: settings contradict each other.
        """
        document = self.document(settings)
        refuse_inference(document)
        try:
            return Spec.model_validate(document.data)
        except ValidationError as error:
            kinds = {problem["type"] for problem in error.errors()}
            are_apart = kinds <= {DISAGREEMENT, FOLLOWS}
            raised = InconsistentSettings if are_apart else SpecError
            raise raised(explain(document, error, Spec)) from None

    def _resolve(self, names: Sequence[Setting]) -> Document:
        """Return the base with names set and resolved; cached by the names set."""
        key = repr([(setting.path, setting.value) for setting in names])
        if key not in self._resolved:
            document = copy.deepcopy(self._base)
            for setting in names:
                _graft(document, setting)
            for note in resolve_names(document):
                if note not in self._notes:
                    self._notes.append(note)
            self._resolved[key] = document
        return self._resolved[key]


def _is_name(path: FieldPath) -> bool:
    if path in {("model",), ("cluster",)}:
        return True
    return path[0] in ("model", "cluster") and path[-1] in _RESOLVED


def _graft(document: Document, setting: Setting) -> None:
    """Put a value into a spec as it is written, before names are resolved."""
    path = setting.path
    for size in range(1, len(path)):
        _open(document, path[:size], setting)
    other = _EITHER.get(str(path[-1]))
    if path[0] == "cluster" and other:
        document.value(path[:-1]).pop(other, None)
    value = copy.deepcopy(setting.value)
    document.graft(path, Document(value, {(): setting.where}))


def _open(document: Document, path: FieldPath, setting: Setting) -> None:
    """Turn the value at a path into a mapping: a name becomes `{preset: name}`."""
    parent, step = document.value(path[:-1]), path[-1]
    if isinstance(parent, dict) and parent.get(step) is None:
        parent[step] = {}
    elif isinstance(parent, dict) and isinstance(parent[step], str):
        field = "topology" if path == ("cluster",) else "preset"
        parent[step] = {field: parent[step]}
    elif not _has(parent, step) or not isinstance(parent[step], dict | list):
        raise _no_field(setting, path)


def _with(data: Any, path: FieldPath, setting: Setting) -> Any:
    """Return a copy of data with a value at a path; all other data is shared."""
    step, rest = path[0], path[1:]
    done = setting.path[: len(setting.path) - len(path) + 1]
    if isinstance(data, dict) and rest and setting.path[0] in _SECTIONS:
        data = {step: {}, **data}
    if rest and not _has(data, step):
        raise _no_field(setting, done)
    if not rest and not (isinstance(data, dict) or _has(data, step)):
        raise _no_field(setting, done)
    changed = copy.copy(data)
    changed[step] = _with(data[step], rest, setting) if rest else setting.value
    return changed


def _has(data: Any, step: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(step, int) and step < len(data)
    return isinstance(data, dict) and step in data


def _no_field(setting: Setting, path: FieldPath) -> SpecError:
    name = ".".join(map(str, path))
    return SpecError(
        f"{setting.where}: {setting.name}: {shown(setting.value)}: the spec has no "
        f"fields in {name}; expected the path of a field of the base"
    )


@dataclass(frozen=True)
class GridPoint:
    """The settings of one point of the grid, applied to the base of the sweep."""

    settings: tuple[Setting, ...]
    builder: Builder

    @cached_property
    def spec(self) -> Spec:
        """Return the spec of the point; see `Builder.spec`."""
        return self.builder.spec(self.settings)

    def value(self, name: str) -> Any:
        """Return a setting, `gpus`, or any other field of the spec.

        Raises:
            KeyError: no field has this name; the message lists those that exist.
        """
        path = field_path(name)
        for setting in self.settings:
            if setting.path == path:
                return setting.label
        try:
            return self.spec.cluster.gpus if name == "gpus" else _field(self.spec, path)
        except LookupError:
            names = ", ".join(setting.name for setting in self.settings)
            told = f"accepted: gpus, {names}, or a field of the spec"
            raise KeyError(told) from None

    def passes(self, filters: Sequence[Filter]) -> bool:
        """Return whether all filters hold."""
        return all(self._passes(condition) for condition in filters)

    def _passes(self, condition: Filter) -> bool:
        """Return whether one filter holds.

        Settings that contradict each other make no spec. They pass filters that need
        one, so that the point becomes a row that says why.
        """
        try:
            return condition.holds(self.value)
        except InconsistentSettings:
            return True


def _field(spec: Spec, path: FieldPath | None) -> Any:
    value: Any = spec
    for step in path or ("",):
        if isinstance(value, BaseModel):
            value = _of_model(value, str(step))
        else:
            value = _of_data(value, step)
    return value


def _of_data(value: Any, step: str | int) -> Any:
    """Return the value that a list or a mapping has at a step of a path.

    Raises:
        LookupError: there is none, or the data is neither list nor mapping.
    """
    try:
        return value[step]
    except TypeError:
        raise KeyError(step) from None


def _of_model(model: BaseModel, field: str) -> Any:
    """Return a field of a model by the name that users write.

    Raises:
        KeyError: the model has no such field.
    """
    for name, info in type(model).model_fields.items():
        if (info.alias or name) == field:
            return getattr(model, name)
    raise KeyError(field)
