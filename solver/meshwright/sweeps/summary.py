"""The summary of a search: best of each group, fronts, trade-offs, failures."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from meshwright.errors import SpecError
from meshwright.explanations.decisions import with_memory
from meshwright.planner.integer_costs import CHUNK_BYTES
from meshwright.plans.columns import Floats, Ints
from meshwright.plans.simplicity import techniques
from meshwright.reading.document import shown
from meshwright.results.result import json_text, read_json
from meshwright.spec.base import MOST_RISK, SpecModel
from meshwright.spec.goals import FASTEST
from meshwright.spec.plan_fields import FIELD, TECHNIQUES, Range
from meshwright.spec.plan_fields import Value as FieldValue
from meshwright.spec.spec import Spec, with_risk
from meshwright.spec.units import GIB
from meshwright.sweeps.cases import Case, Row, Value
from meshwright.sweeps.metrics import METRICS
from meshwright.sweeps.sweep import Search

EVERY = "all cases"
"""Name of the only group where no axis makes groups."""


@dataclass(frozen=True)
class Reason:
    """Why some cases have no plan: rules or an error, with the first of those rows."""

    names: tuple[str, ...]
    cases: int
    first: Row


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Example:
        >>> import meshwright as mw
        >>> found = mw.search(
        ...     {"base": "llama3-8b-2xh100-nvlink", "sweep": {"pins.tp": [[1], [2]]}},
        ...     workers=1,
        ... )
        >>> [(row.status, row.plan.tp) for row in found.rows]
        [('optimal', 1), ('optimal', 2)]
    """

    title: str
    metric: str
    group: str | None
    rows: tuple[Row, ...]
    left: int
    """Cases that were not solved."""
    best: dict[Value, Row] = field(default_factory=dict)
    """The best row of each group that has a plan."""
    conflicts: tuple[Reason, ...] = ()
    errors: tuple[Reason, ...] = ()
    front_metrics: tuple[str, ...] = ()
    fronts: dict[Value, tuple[Row, ...]] = field(default_factory=dict)
    """The front of each group."""

    @property
    def counts(self) -> Counter[str]:
        """Return how many rows there are of each status."""
        return Counter(row.status for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `search --format json` prints."""
        return printed_search(self)

    def to_json(self) -> str:
        """Return the text that `search --format json` prints."""
        return json_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> SearchResult:
        """Return the result of a search from its JSON text.

        `to_dict` returns the same data again. The JSON does not name the axis of the
        groups: `group` is None, and the names of groups are text.

        Raises:
            SpecError: the text is no JSON, or is another kind of answer.
        """
        return search_of(read_json(PrintedSearch, text, cls.__name__))

    def _repr_html_(self) -> str:
        """Return what notebooks show: the report of the search, or its text."""
        # By their names: workers of a search tell nothing.
        sections = import_module("meshwright.sweeps.export").search_sections(self)
        pages = import_module("meshwright.report.pages.answer")
        shown: str = pages.sections_html(sections)
        return shown


def summarise(
    title: str,
    rows: Sequence[Row],
    metric: str,
    group: str | None = None,
    metrics: Sequence[str] = (),
    left: int = 0,
) -> SearchResult:
    """Return the result of a search whose rows these are."""
    return SearchResult(
        title=title,
        metric=metric,
        group=group,
        rows=tuple(rows),
        left=left,
        best=best_of_groups(rows, metric, group),
        conflicts=_reasons([row for row in rows if row.status == "infeasible"]),
        errors=_reasons([row for row in rows if row.status == "failed"]),
        front_metrics=tuple(metrics),
        fronts=_fronts(rows, metrics, group) if metrics else {},
    )


def best_of_groups(
    rows: Sequence[Row], metric: str, group: str | None
) -> dict[Value, Row]:
    """Return the best row of each group; of equal rows the first."""
    best: dict[Value, Row] = {}
    for row in rows:
        keep_best(best, row, metric, group)
    return best


def keep_best(best: dict[Value, Row], row: Row, metric: str, group: str | None) -> None:
    """Note a row as the best of its group, if it is better than the one noted."""
    name = group_of(row, group)
    if getattr(row, metric) is None:
        return
    if name not in best or is_better(row, best[name], metric):
        best[name] = row


def group_of(row: Row, group: str | None) -> Value:
    """Return the group of a row: its value on an axis."""
    return row.axes.get(group) if group else EVERY


def compared(row: Row, metric: str) -> float | None:
    """Return the metric of a row as it is compared: at the doubted step, if any."""
    value: float | None = getattr(row, metric)
    doubted_s, step_s = row.doubted_s, row.step_s
    if value is None or not (METRICS[metric].is_of_step and doubted_s and step_s):
        return value
    longer = doubted_s / step_s
    return value * longer if METRICS[metric].better == "min" else value / longer


def is_better(row: Row, other: Row, metric: str) -> bool:
    """Return whether a row beats another by a metric that both have."""
    value, known = compared(row, metric), compared(other, metric)
    assert value is not None
    assert known is not None
    return bool(value < known if METRICS[metric].better == "min" else value > known)


def _reasons(rows: Sequence[Row]) -> tuple[Reason, ...]:
    """Return the distinct reasons of rows, the most frequent first."""
    grouped: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.conflict or (row.error,)].append(row)
    found = [Reason(names, len(rows), rows[0]) for names, rows in grouped.items()]
    return tuple(sorted(found, key=lambda reason: -reason.cases))


def _fronts(
    rows: Sequence[Row], metrics: Sequence[str], group: str | None
) -> dict[Value, tuple[Row, ...]]:
    grouped: dict[Value, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[group_of(row, group)].append(row)
    fronts = {name: tuple(front(rows, metrics)) for name, rows in grouped.items()}
    return {name: rows for name, rows in fronts.items() if rows}


def front(rows: Sequence[Row], metrics: Sequence[str]) -> list[Row]:
    """Return the rows that no other row dominates; equal rows are all kept.

    Rows that lack a metric take no part. The first metric orders the front, best first.
    """
    known = [row for row in rows if None not in _values(row, metrics)]
    if not known:
        return []
    signs = [1.0 if METRICS[name].better == "min" else -1.0 for name in metrics]
    costs = np.array([_values(row, metrics) for row in known], dtype=float) * signs
    return [known[index] for index in undominated(costs)]


def _values(row: Row, metrics: Sequence[str]) -> list[float | None]:
    return [getattr(row, name) for name in metrics]


def undominated(costs: Floats) -> Ints:
    """Return the rows of which no other is as low everywhere and lower somewhere.

    Rows are visited in the order of their columns. What dominates a row is visited
    before it, so a row is compared only with the front found so far.
    """
    found: list[int] = []
    for index in np.lexsort(costs.T[::-1]):
        known = costs[found]
        is_above = (known <= costs[index]).all(axis=1)
        is_above &= (known < costs[index]).any(axis=1)
        if not is_above.any():
            found.append(int(index))
    return np.array(found, dtype=np.int64)


class PrintedFront(SpecModel):
    """The cases that no other beats in all metrics."""

    metrics: tuple[str, ...]
    rows: dict[str, tuple[str, ...]] = Field(description="Keys of rows, by group.")


class PrintedReason(SpecModel):
    """Rules that leave cases no plan."""

    rules: tuple[str, ...]
    cases: int
    first: str = Field(description="Key of the first of them.")


class PrintedSearch(SpecModel):
    """The JSON of `search --format json`."""

    search: str = Field(description="Its title.")
    counts: dict[str, int] = Field(
        description="Cases by status, and those `left` unsolved."
    )
    metric: str = Field(description="What makes a case best.")
    best: dict[str, str] = Field(description="Key of the best row, by group.")
    front: PrintedFront
    conflicts: tuple[PrintedReason, ...]
    rows: tuple[Row, ...]


def printed_search(found: SearchResult) -> dict[str, Any]:
    """Return the JSON data of a search."""
    fronts = {
        str(name): tuple(row.key for row in rows) for name, rows in found.fronts.items()
    }
    conflicts = (
        PrintedReason(rules=reason.names, cases=reason.cases, first=reason.first.key)
        for reason in found.conflicts
    )
    printed = PrintedSearch(
        search=found.title,
        counts={**found.counts, "left": found.left},
        metric=found.metric,
        best={str(name): row.key for name, row in found.best.items()},
        front=PrintedFront(metrics=found.front_metrics, rows=fronts),
        conflicts=tuple(conflicts),
        rows=found.rows,
    )
    return printed.model_dump(mode="json")


def search_of(printed: PrintedSearch) -> SearchResult:
    """Return the result whose JSON this is.

    Raises:
        SpecError: a key has no row, or the metric is unknown.
    """
    rows = {row.key: row for row in reversed(printed.rows)}
    named = [*printed.best.values(), *chain.from_iterable(printed.front.rows.values())]
    for key in named:
        if key not in rows:
            raise SpecError(f"not the JSON of a search: no row has key {shown(key)}")
    if printed.metric not in METRICS:
        raise SpecError(f"not the JSON of a search: metric: {shown(printed.metric)}")
    found = summarise(
        printed.search, printed.rows, printed.metric, left=printed.counts.get("left", 0)
    )
    best: dict[Value, Row] = {name: rows[key] for name, key in printed.best.items()}
    fronts: dict[Value, tuple[Row, ...]] = {
        name: tuple(rows[key] for key in keys)
        for name, keys in printed.front.rows.items()
    }
    metrics = printed.front.metrics
    return replace(found, best=best, front_metrics=metrics, fronts=fronts)


Solve = Callable[[Case], Row]
"""Returns the row of a case."""

CHUNK_GIB = CHUNK_BYTES / GIB

LEAST_RISK = 1e-4
"""Risks below it are not told apart: a spread says little of its tails."""


def by_memory(spec: Spec, solve: Solve) -> Iterator[Row]:
    """Yield the fastest plan, then the fastest that needs less memory, and so on.

    "Less" is one chunk less, to which the solver rounds memory.
    """
    spec, memory_gib = _by_step(spec), spec.usable_gib
    while memory_gib > 0:
        limited = with_memory(spec, memory_gib)
        row = solve(Case(spec.title, {"memory_gib": round(memory_gib, 2)}, limited))
        if row.peak_gib is None:
            return
        yield row
        memory_gib = row.peak_gib - CHUNK_GIB


def by_risk(spec: Spec, solve: Solve) -> Iterator[Row]:
    """Yield the fastest plan of all, then the fastest that is safer, and so on.

    The first is the fastest even if it is as likely to run out of memory as not, unless
    the spec limits memory itself. The last is the safest plan there is, or one whose
    risk is close to zero. "Safer" means at least one chunk of memory less on the GPU
    that is least likely to fit.
    """
    risk, limited = MOST_RISK, (spec := _by_step(spec))
    if spec.limits.is_by_risk:
        limited = with_risk(spec, risk)
    while risk > LEAST_RISK:
        row = solve(Case(spec.title, {"oom_risk": float(f"{risk:.3g}")}, limited))
        if row.memory is None or row.risk is None:
            return
        yield row
        risk = spec.memory_spread.risk_below(row.risk, row.memory.total_gib, CHUNK_GIB)
        limited = with_risk(spec, risk)


def by_gpus(spec: Spec) -> list[Case]:
    """Return the spec on one copy of its topology, on two, and so on."""
    return [_with_count(spec, count) for count in range(1, spec.cluster.count + 1)]


def _by_step(spec: Spec) -> Spec:
    """Return a spec that asks for the fastest plan, whatever is doubted of its step."""
    return spec.model_copy(update={"objective": FASTEST})


def _with_count(spec: Spec, count: int) -> Case:
    # A copied cluster would keep the cached properties of the original.
    axes: dict[str, Value] = {"cluster.count": count}
    try:
        cluster = type(spec.cluster)(**{**dict(spec.cluster), "count": count})
        sized = Spec(**{**dict(spec), "cluster": cluster})
    except ValidationError as error:
        told = "; ".join(problem["msg"] for problem in error.errors())
        return Case(f"{count} x {spec.cluster.topology.name}", axes, None, told)
    return Case(sized.title, axes, sized)


def by_techniques(spec: Spec, solve: Solve) -> Iterator[Row]:
    """Yield the fastest plan, then the fastest with fewer techniques, and so on.

    Each answer is solved again without one of the techniques that its plan uses, for
    each of them. Answers are visited in the order of their times, so that a plan which
    is no slower than another and uses no further technique is visited before it.
    """
    spec, fewest, tried = _by_step(spec), len(TECHNIQUES) + 1, {frozenset[str]()}
    heap = [*_solved(spec, frozenset(), solve)]
    while heap and fewest:
        _, names, row = heapq.heappop(heap)
        assert row.plan is not None
        used = techniques(row.plan)
        if len(used) < fewest:
            fewest = len(used)
            yield row
        for without in (frozenset({*names, name}) for name in sorted(used)):
            if without not in tried:
                tried.add(without)
                for found in _solved(spec, without, solve):
                    heapq.heappush(heap, found)


def _solved(
    spec: Spec, without: frozenset[str], solve: Solve
) -> Iterator[tuple[float, list[str], Row]]:
    """Yield the best plan without some techniques, if there is one."""
    names = sorted(without)
    pins = {name: _plain_pin(spec, name) for name in names}
    if None in pins.values():
        return
    pinned = spec.having("pins", **pins)
    row = solve(Case(spec.title, {"without": " ".join(names) or "nothing"}, pinned))
    if row.step_s is not None:
        yield row.step_s, names, row


def _plain_pin(spec: Spec, name: str) -> Any:
    """Return the pin that forbids a technique; None where the spec demands it."""
    pinned, field = getattr(spec.pins, name), FIELD[name]
    plain = [value for value in field.plain_values if _accepts(pinned, value)]
    if not plain:
        return None
    return tuple(plain) if field.words else Range(values=tuple(map(int, plain)))


def _accepts(pinned: Any, value: FieldValue) -> bool:
    """Return whether a pin, if any, leaves a value."""
    if isinstance(pinned, Range):
        return pinned.accepts(int(value))
    return pinned is None or value in pinned


STEPS: dict[str, Callable[[Spec, Solve], Iterator[Row]]] = {
    "peak_gib": by_memory,
    "risk": by_risk,
    "ways": by_techniques,
}
"""By metric, the trade-offs in which the next solve depends on the last answer."""

AGAINST = ("peak_gib", "risk", "gpus", "ways")
"""The metrics that the step time of one spec can be traded against."""


def trade_off_search(search: Search, against: str) -> Search:
    """Return the search for a front of one spec.

    Its cases are listed where they are known before the first is solved.

    Raises:
        SpecError: there are several specs, or no such front.
    """
    if against not in AGAINST:
        accepted = ", ".join(AGAINST)
        raise SpecError(f"--within: {against!r}: expected one of {accepted}")
    if len(search.cases) != 1 or search.cases[0].spec is None:
        raise SpecError(f"--within: {len(search.cases)} cases; expected one spec")
    fields = search.fields.model_copy(update={"front": ("step_s", against)})
    cases = search.cases
    if against == "gpus":
        cases = by_gpus(_by_step(search.cases[0].spec))
    return replace(search, cases=cases, fields=fields)
