"""What one spec trades off: step time against memory, GPUs, or simplicity.

Each front comes of solving the spec again under a constraint that its last answers
break, until nothing fits: every point is proven, and none is missing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from meshwright.bounds.integer_costs import CHUNK_BYTES
from meshwright.explanations.changed_spec import with_memory
from meshwright.spec.pins import Range
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from meshwright.sweeps.case import Case
from meshwright.sweeps.row import Row, Value
from meshwright.sweeps.techniques_beyond_dp import OFF, ways

Solve = Callable[[Case], Row]


def by_memory(spec: Spec, solve: Solve) -> Iterator[Row]:
    """Yield the fastest plan, then the fastest that needs less memory, and so on.

    Less is a chunk less, to which memory is rounded: see `scaling`.
    """
    room_gib = spec.usable_gib
    while room_gib > 0:
        limited = with_memory(spec, room_gib)
        row = solve(Case(spec.title, {"memory_gib": round(room_gib, 2)}, limited))
        if row.peak_gib is None:
            return
        yield row
        room_gib = row.peak_gib - CHUNK_BYTES / GIB


def by_gpus(spec: Spec) -> list[Case]:
    """Return the spec on one copy of its topology, on two, and so on."""
    return [_on(spec, count) for count in range(1, spec.cluster.count + 1)]


def _on(spec: Spec, count: int) -> Case:
    # Made anew, for a copy of a cluster would have what its original worked out.
    axes: dict[str, Value] = {"cluster.count": count}
    try:
        cluster = type(spec.cluster)(**{**dict(spec.cluster), "count": count})
        sized = Spec(**{**dict(spec), "cluster": cluster})
    except ValidationError as error:
        told = "; ".join(problem["msg"] for problem in error.errors())
        return Case(f"{count} x {spec.cluster.topology.name}", axes, None, told)
    return Case(sized.title, axes, sized)


def by_ways(spec: Spec, solve: Solve) -> Iterator[Row]:
    """Yield the fastest plan, then the fastest that uses fewer ways, and so on.

    Each answer is solved again without one of the ways that it uses, for each of them.
    Answers are looked at in the order of their times: whatever plan there is, one that
    is no slower and uses none but its ways comes before all slower ones.
    """
    fewest, tried = len(OFF) + 1, {frozenset[str]()}
    heap = [*_solved(spec, frozenset(), solve)]
    while heap and fewest:
        _, names, row = heapq.heappop(heap)
        assert row.plan is not None
        used = ways(row.plan)
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
    """Yield the best plan without some ways, if there is one."""
    names = sorted(without)
    pins = {name: _off(spec, name) for name in names}
    if None in pins.values():
        return
    pinned = spec.model_copy(update={"pins": spec.pins.model_copy(update=pins)})
    row = solve(Case(spec.title, {"without": " ".join(names)}, pinned))
    if row.step_s is not None:
        yield row.step_s, names, row


def _off(spec: Spec, name: str) -> Any:
    """Return the pin that leaves a way out; None where the spec pins it in."""
    pinned, off = getattr(spec.pins, name), OFF[name]
    if isinstance(pinned, Range) and not pinned.accepts(off):
        return None
    if isinstance(pinned, tuple) and off not in pinned:
        return None
    if isinstance(off, bool):
        return None if pinned else off
    return (off,) if isinstance(off, str) else Range(values=(off,))
