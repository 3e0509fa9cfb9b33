"""A point of the grid of a sweep, and the fields that filters look up in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from meshwright.reading.document import FieldPath, field_path
from meshwright.spec.spec import Spec
from meshwright.sweeps.axes import Setting
from meshwright.sweeps.builder import Builder, InconsistentSettings
from meshwright.sweeps.filters import Filter


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
