"""A spec with one of its numbers varied: `topology.levels[0].gb_s=8:900`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.spec.base import to_number
from meshwright.spec.load import read_spec
from meshwright.spec.messages import explain
from meshwright.spec.places import FieldPath, dotted, field_path
from meshwright.spec.spec import Spec


class Varied(NamedTuple):
    """A number of a spec and the range that is looked at."""

    name: str
    low: float
    high: float
    at: Callable[[float], Spec]
    """Returns the spec with the number at a value; raises SpecError outside limits."""


def vary(spec: str, text: str) -> Varied:
    """Return how to vary one number of a spec, `PATH=LOW:HIGH`.

    The path may leave out `cluster` at its start. Whole numbers stay whole.

    Raises:
        SpecError: there is no such number, or no such range.
    """
    path_text, _, span = text.partition("=")
    low, high = (to_number(own) for own in (*span.split(":"), "", "")[:2])
    if low is None or high is None or not 0 < low < high or span.count(":") != 1:
        raise SpecError(f"--vary {text}: expected PATH=LOW:HIGH with 0 < LOW < HIGH")
    document = read_spec(spec)
    path = _path(document.data, _steps(text, path_text))
    value = _value(document.data, path) if path else None
    if path is None or isinstance(value, bool) or to_number(_bare(value)) is None:
        raise SpecError(f"--vary {text}: no number of the spec is at {path_text!r}")
    is_whole = isinstance(value, int)

    def at(number: float) -> Spec:
        data = copy.deepcopy(document.data)
        _value(data, path[:-1])[path[-1]] = round(number) if is_whole else number
        try:
            return Spec.model_validate(data)
        except ValidationError as error:
            raise SpecError(explain(document, error, Spec)) from None

    return Varied(dotted(path), low, high, at)


def _steps(text: str, path: str) -> FieldPath:
    found = field_path(path)
    if found is None:
        raise SpecError(f"--vary {text}: expected a path such as training.seq_len")
    return found


def _path(data: Any, steps: FieldPath) -> FieldPath | None:
    """Return the path that leads to something, as it is or below the cluster."""
    for path in (steps, ("cluster", *steps)):
        try:
            _value(data, path)
        except (KeyError, IndexError, TypeError):
            continue
        return path
    return None


def _value(data: Any, path: FieldPath) -> Any:
    for step in path:
        data = data[step]
    return data


def _bare(value: Any) -> Any:
    """Return the number of a quantity such as '400 Gbit/s'."""
    return value.split()[0] if isinstance(value, str) and value.split() else value
