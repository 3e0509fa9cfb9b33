"""The map of a lattice as the data of its chart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.report.answer_page.plan_data import rounded
from meshwright.results.lattice_map import Dot, LatticeMap, Refusal

FILTERS = ("tp", "pp", "ep", "zero")
"""Fields by which dots can be chosen."""


def map_data(lattice: LatticeMap) -> dict[str, Any]:
    """Return what the chart of a map draws.

    A dot is a row: state, step time, whether that is exact, memory, skeletons,
    techniques, and the values of `fields`. Fields that all dots share stand once.
    """
    names = list(lattice.dots[0].fields) if lattice.dots else []
    values = {name: [dot.fields[name] for dot in lattice.dots] for name in names}
    fields = [name for name in names if len(set(values[name])) > 1]
    common = {name: values[name][0] for name in names if name not in fields}
    return {
        "told": list(_told(lattice)),
        "names": names,
        "fields": fields,
        "common": common,
        "filters": [name for name in FILTERS if name in fields],
        "usable": rounded(lattice.usable_gib),
        "dots": [_row(dot, fields) for dot in _drawn_last_first(lattice)],
        "refusals": [_refusal(own) for own in lattice.refusals],
    }


ORDER = ("slower", "memory", "near", "best")
"""States in the order in which their dots are drawn, the last on top."""


def _drawn_last_first(lattice: LatticeMap) -> list[Dot]:
    return sorted(lattice.dots, key=lambda dot: (ORDER.index(dot.state), dot.step_s))


def _row(dot: Dot, fields: list[str]) -> list[Any]:
    seen = (rounded(dot.step_s), dot.is_exact, rounded(dot.memory_gib))
    of_dot = (dot.state, *seen, dot.skeletons, dot.techniques)
    return [*of_dot, *(dot.fields[name] for name in fields)]


def _refusal(own: Refusal) -> dict[str, Any]:
    return {
        "rule": own.rule,
        "sentence": own.sentence,
        "count": own.count,
        "examples": [dict(fields) for fields in own.examples],
    }


def _told(lattice: LatticeMap) -> Iterator[str]:
    if lattice.dots:
        yield from _told_of_dots(lattice)
    else:
        yield "No skeleton is legal: rules refuse all degrees."
    if lattice.refusals:
        yield (
            "Grey dots are degrees that rules refuse before anything is priced, each "
            "at the first rule that it breaks; the numbers count all."
        )


def _told_of_dots(lattice: LatticeMap) -> Iterator[str]:
    dots, skeletons = len(lattice.dots), lattice.skeletons
    if lattice.shared:
        names = ", ".join(lattice.shared)
        yield (
            f"{dots:,} dots stand for {skeletons:,} legal skeletons on all their "
            f"meshes: those with the same {names} share a dot."
        )
    else:
        meshes = f", {skeletons:,} with all their meshes" * (skeletons > dots)
        yield f"Each of the {dots:,} dots is a legal skeleton{meshes}."
    yield (
        "A dot stands at a lower bound on step time: no plan of it that fits is "
        "faster. The recommended plan stands at its exact time."
    )
    yield (
        "Memory is that of the fullest GPU, with the skeleton that has this bound. "
        "Where none fits, it is the least that the skeleton needs which frees the most "
        "with the smallest micro-batch, and the bound leaves memory aside."
    )
    if lattice.is_of_parts:
        yield "It is of the parts as the recommended plan uses them."
    if lattice.has_open_rules:
        yield "Limits on links and rules on splits of layers may refuse what fits here."
