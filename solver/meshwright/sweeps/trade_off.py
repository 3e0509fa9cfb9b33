"""Trade-offs of one spec: step time against memory, risk, GPUs, or techniques.

Each front is found by solving the spec again under a constraint that its last answers
break, until no plan fits: every point is proven, and none is missing. Answers are
stored like those of any search.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.explanations.decisions import with_memory
from meshwright.planner.integer_costs import CHUNK_BYTES
from meshwright.plans.simplicity import techniques
from meshwright.spec.base import MOST_RISK
from meshwright.spec.plan_fields import FIELD, TECHNIQUES, Range
from meshwright.spec.plan_fields import Value as FieldValue
from meshwright.spec.spec import Spec, with_risk
from meshwright.spec.units import GIB
from meshwright.sweeps.cases import Case, Row, Value
from meshwright.sweeps.sweep import Search

Solve = Callable[[Case], Row]
"""Returns the row of a case."""

CHUNK_GIB = CHUNK_BYTES / GIB

LEAST_RISK = 1e-4
"""Risks below it are not told apart: a spread says little of its tails."""


def by_memory(spec: Spec, solve: Solve) -> Iterator[Row]:
    """Yield the fastest plan, then the fastest that needs less memory, and so on.

    "Less" is one chunk less, to which the solver rounds memory.
    """
    memory_gib = spec.usable_gib
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
    risk, limited = MOST_RISK, spec
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
    fewest, tried = len(TECHNIQUES) + 1, {frozenset[str]()}
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
    pinned = spec.model_copy(update={"pins": spec.pins.model_copy(update=pins)})
    row = solve(Case(spec.title, {"without": " ".join(names)}, pinned))
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
    cases = by_gpus(search.cases[0].spec) if against == "gpus" else search.cases
    return replace(search, cases=cases, fields=fields)


def is_stepwise(against: str | None) -> bool:
    """Return whether each case of a front follows from the answers before it."""
    return against in STEPS
