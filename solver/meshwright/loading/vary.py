"""A spec with one of its numbers varied: `topology.levels[0].gb_s=8:900`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from meshwright.errors import SpecError
from meshwright.loading.load import read_spec
from meshwright.loading.sources import Source
from meshwright.reading.document import (
    FieldPath,
    field_path,
    shown,
    validated,
)
from meshwright.spec.base import to_length, to_number
from meshwright.spec.spec import Spec
from meshwright.surface import option

LINKS_GB_S = (8.0, 900.0)
"""The range of links between two GPUs: PCIe 3.0 x8 (PCI-SIG, 7.9 GB/s) to NVLink 5
(NVIDIA Blackwell architecture brief, 1.8 TB/s both ways together)."""

PAIR = 2
"""The number of GPUs on which `compare` shows kinds of plans in full."""

_UNITS = {"gb_s": "GB/s", "us": "us", "gib": "GiB", "w": "W"}


class Varied(NamedTuple):
    """A number of a spec, and the range in which it is varied."""

    name: str
    low: float
    high: float
    at: Callable[[float], Spec]
    """Returns the spec with the number at a value; raises SpecError outside limits."""
    about: str
    """The name of the object with the number, such as a level; empty without one."""
    value: float | None
    """The value in the spec, in the unit of the range; None where it is left out."""

    @property
    def unit(self) -> str:
        """Return the unit that the name of the number ends in."""
        ends = {(f".{end}", f"_{end}"): unit for end, unit in _UNITS.items()}
        return next((unit for e, unit in ends.items() if self.name.endswith(e)), "")


def innermost_link(spec: Spec) -> str | None:
    """Return how to vary the link of the innermost level that joins GPUs.

    That is `PATH=LOW:HIGH`, a range that holds all of `LINKS_GB_S` and the double and
    half of what the link has; None where GPUs are not joined by a level.
    """
    cluster = spec.cluster
    joins = (i for i, level in enumerate(cluster.levels) if level.size > 1)
    inner = next(joins, None)
    if inner is None or cluster.topology.nodes or cluster.parts:
        return None
    gb_s, (low, high) = cluster.levels[inner].gb_s, LINKS_GB_S
    is_outer = inner == len(cluster.topology.levels)
    path = "scale_out" if is_outer else f"levels[{inner}]"
    return f"topology.{path}.gb_s={min(low, gb_s / 2):g}:{max(high, gb_s * 2):g}"


def varied(
    source: Source, spec: Spec, text: str | None, has_plans: bool
) -> Varied | None:
    """Return the number that a comparison varies: the one asked for, or two GPUs' link.

    The link is varied where no plans are given.

    Raises:
        SpecError: see `vary`.
    """
    if text is None and not has_plans and spec.cluster.gpus == PAIR:
        text = innermost_link(spec)
    return vary(source, text) if text is not None else None


def vary(source: Source, text: str) -> Varied:
    """Return how to vary one number of a spec, `PATH=LOW:HIGH`.

    The path may leave out `cluster` at its start. Whole numbers stay whole.

    Raises:
        SpecError: there is no such number, or no such range.
    """
    path_text, _, span = text.partition("=")
    ends = (*span.split(":"), "", "")[:2]
    low, high = (to_length(end.strip()) or to_number(end) for end in ends)
    if low is None or high is None or not 0 < low < high or span.count(":") != 1:
        raise SpecError(f"{_option(text)}: expected PATH=LOW:HIGH with 0 < LOW < HIGH")
    document = read_spec(source)
    path = _path(document.data, _steps(text, path_text))
    if path is None or _number(document.data, path) is None:
        raise SpecError(
            f"{_option(text)}: no number of the spec is at {shown(path_text)}"
        )
    is_whole = isinstance(_value(document.data, path), int)

    def at(number: float) -> Spec:
        data = copy.deepcopy(document.data)
        _value(data, path[:-1])[path[-1]] = round(number) if is_whole else number
        return validated(document, Spec, data)

    dumped = validated(document, Spec).model_dump()
    about = _value(document.data, path[:-1]).get("name", "")
    return Varied(path_text, low, high, at, about, _number(dumped, path))


def _option(text: str) -> str:
    return option("vary", shown(text)[1:-1])


def _steps(text: str, path: str) -> FieldPath:
    found = field_path(path)
    if found is None:
        raise SpecError(f"{_option(text)}: expected a path such as training.seq_len")
    return found


def _path(data: Any, steps: FieldPath) -> FieldPath | None:
    """Return the path that exists in the data, as given or below `cluster`."""
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


def _number(data: Any, path: FieldPath) -> float | None:
    """Return the number at a path, also that of a quantity such as '400 Gbit/s'."""
    value = _value(data, path)
    if isinstance(value, str):
        value = next(iter(value.split()), None)
    return None if isinstance(value, bool) else to_number(value)
