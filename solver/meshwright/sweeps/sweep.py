"""Reads the cases of a search: from a sweep, a spec, a folder or a pattern."""

from __future__ import annotations

import glob
import math
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.loading.load import load_spec
from meshwright.loading.sources import Source, is_name, open_source
from meshwright.reading.document import Document, Where, shown, validated
from meshwright.reading.yaml_and_csv import is_folder, read_yaml
from meshwright.spec.base import Count, CountOrNone, SpecModel
from meshwright.sweeps.cases import Case, Filter, read_filter
from meshwright.sweeps.grid import (
    Axis,
    Builder,
    GridPoint,
    InconsistentSettings,
    Setting,
    read_axes,
)
from meshwright.sweeps.metrics import METRICS


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"expected one of {', '.join(METRICS)}")
    return name


MOST_POINTS = 1_000_000
"""Most points of a sweep, before filters and samples."""


MOST_DRAWN_FROM = 10**15
"""Most points that a sample may be drawn from."""


Metric = Annotated[str, AfterValidator(_known)]


def _few(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(set(map(str, value))) not in (2, 3):
        raise ValueError("expected two or three metrics")
    return value


class Sample(SpecModel):
    """A seeded draw from the cases of a sweep."""

    cases: Count = Field(description="How many cases.")
    seed: CountOrNone = Field(0, description="Of the draw.")


class SweepFields(SpecModel):
    """The fields of a sweep file."""

    base: Any = Field(None, description="A spec: its file, a bundled name, or fields.")
    sweep: Any = Field(None, description="Fields of the base with lists of values.")
    zip: Any = Field(None, description="The same, for fields that go together.")
    sample: Sample | None = Field(None, description="A draw of so many cases.")
    where: Any = Field(None, description="Comparisons that cases must pass.")
    best: Metric = Field("tokens_per_s_per_gpu", description="What makes a case best.")
    group: str | None = Field(None, description="The axis whose values make groups.")
    front: Annotated[tuple[Metric, ...], BeforeValidator(_few)] | None = Field(
        None, description="Two or three metrics to trade off."
    )


@dataclass(frozen=True)
class Search:
    """The cases of a search and the fields of its sweep file."""

    title: str
    cases: list[Case]
    fields: SweepFields = field(default_factory=SweepFields)
    notes: list[str] = field(default_factory=list)

    @property
    def axes(self) -> list[str]:
        """Return the names of all axes."""
        return list(dict.fromkeys(axis for case in self.cases for axis in case.axes))


def read_search(source: Source) -> Search:
    """Return the search in a sweep, a spec, a folder, or files of a pattern.

    A sweep or a spec may be a file, a bundled name, YAML text, or plain fields.

    Raises:
        SpecError: names the file, line, field, value and what is accepted.
    """
    if not is_name(source):
        return _of_document("search", source, open_source(source, "sweeps"))
    name = os.fspath(source)
    path = Path(name)
    if is_folder(path) or glob.has_magic(name):
        pattern = str(path / "*.yaml") if is_folder(path) else name
        files = sorted(glob.glob(pattern, recursive=True))
        if not files:
            told = "no file of this folder or pattern; expected YAML"
            raise SpecError(f"{Where(name)}: {told}")
        notes: list[str] = []
        cases = [_of_file(file, notes) for file in files]
        return Search(printable(name), cases, notes=notes)
    file = catalog.locate("sweeps", name, Path())
    return _of_document(file.stem, file, read_yaml(file))


def _of_document(title: str, source: Source, document: Document) -> Search:
    """Return the search of a sweep, or of one spec, that was read from a source."""
    if isinstance(document.data, dict) and {"base", "sweep", "zip"} & set(
        document.data
    ):
        return _of_sweep(title, document)
    notes: list[str] = []
    spec = load_spec(source, notes=notes)
    return Search(title, [Case(spec.title, {}, spec)], notes=notes)


def _of_file(file: str, notes: list[str]) -> Case:
    """Return the case of a file; bytes of its name that are no text are escaped."""
    name = os.fsencode(file).decode("utf-8", "backslashreplace")
    axes: dict[str, Any] = {"spec": Path(name).stem}
    try:
        spec = load_spec(file, notes=notes)
    except SpecError as error:
        return Case(name, axes, None, str(error))
    return Case(spec.title, axes, spec)


def _of_sweep(title: str, document: Document) -> Search:
    fields = validated(document, SweepFields)
    axes, filters = read_axes(document), list(_filters(document))
    notes: list[str] = []
    builder = Builder(_base(document), notes)
    drawn = _drawn(document, fields, axes, filters, builder)
    cases = [_case(point) for point in drawn]
    if not cases:
        place = document.where(("where",))
        raise SpecError(f"{place}: where: no case of the sweep passes")
    search = Search(title, cases, fields, notes)
    if fields.group is not None and fields.group not in search.axes:
        place, accepted = document.where(("group",)), ", ".join(search.axes)
        raise SpecError(
            f"{place}: group: {shown(fields.group)}: expected an axis: {accepted}"
        )
    return search


def _base(document: Document) -> Document:
    """Return the base of a sweep as it was written.

    Raises:
        SpecError: the sweep has no base, or it is no spec.
    """
    base, where = document.data.get("base"), document.where(("base",))
    if isinstance(base, str):
        try:
            return read_yaml(catalog.locate("specs", base, Path(where.file).parent))
        except SpecError as error:
            at = "" if str(error).startswith("/") else f"{where}: base: "
            raise SpecError(f"{at}{error}") from None
    if not isinstance(base, dict):
        accepted = "expected a spec: its file, a bundled name, or its fields"
        raise SpecError(f"{where}: base: {shown(base)}: {accepted}")
    places = {
        path[1:]: place
        for path, place in document.places.items()
        if path[:1] == ("base",)
    }
    return Document(base, {(): where, **places})


def _filters(document: Document) -> Iterator[Filter]:
    written = document.data.get("where")
    if isinstance(written, list):
        for index, text in enumerate(written):
            yield read_filter(text, document.where(("where", index)))
    elif written is not None:
        yield read_filter(written, document.where(("where",)))


def _drawn(
    document: Document,
    fields: SweepFields,
    axes: Sequence[Axis],
    filters: Sequence[Filter],
    builder: Builder,
) -> list[GridPoint]:
    """Return the points that pass all filters, or the sample drawn from them."""
    total = math.prod(map(len, axes))
    at = document.where(("sweep",))
    if total > MOST_DRAWN_FROM:
        told = f"makes more than {MOST_DRAWN_FROM:,} cases"
        raise SpecError(f"{at}: sweep: {told}; accepted: up to {MOST_POINTS:,}")
    if fields.sample is None:
        if total > MOST_POINTS:
            most = f"accepted: up to {MOST_POINTS:,}, or a sample"
            raise SpecError(f"{at}: sweep: makes {total:,} cases; {most}")
        return [point for _, point in _passing(range(total), axes, filters, builder)]
    rng = random.Random(fields.sample.seed)
    order = rng.sample(range(total), min(total, MOST_POINTS))
    passing = _passing(order, axes, filters, builder)
    few = [point for point, _ in zip(passing, range(fields.sample.cases), strict=False)]
    return [point for _, point in sorted(few, key=lambda numbered: numbered[0])]


def _passing(
    numbers: Sequence[int],
    axes: Sequence[Axis],
    filters: Sequence[Filter],
    builder: Builder,
) -> Iterator[tuple[int, GridPoint]]:
    for number in numbers:
        point = GridPoint(_settings(number, axes), builder)
        if point.passes(filters):
            yield number, point


def _settings(number: int, axes: Sequence[Axis]) -> tuple[Setting, ...]:
    """Return the settings of a point of the grid; the last axis varies fastest."""
    found: list[tuple[Setting, ...]] = []
    for axis in reversed(axes):
        number, index = divmod(number, len(axis))
        found.append(axis[index])
    return tuple(setting for point in reversed(found) for setting in point)


def _case(point: GridPoint) -> Case:
    axes = {setting.name: setting.label for setting in point.settings}
    try:
        spec = point.spec
    except InconsistentSettings as error:
        name = ", ".join(f"{axis} {value}" for axis, value in axes.items())
        return Case(name, axes, None, str(error))
    return Case(spec.title, axes, spec)
