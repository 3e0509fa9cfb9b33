"""Short names of compared plans: only the fields in which the plans differ."""

from __future__ import annotations

import re
from collections.abc import Callable

from meshwright.results.comparison import Comparison, Crossover, HeadToHead

Rename = Callable[[str], str]
"""Returns the short name for a full name."""


def with_short_names(comparison: Comparison) -> Comparison:
    """Return the comparison with plans named by the fields in which they differ.

    Names stay as they are where the short ones would be empty or equal.
    """
    fields = {plan.name: _fields(plan.name) for plan in comparison.plans}
    shared = set.intersection(*map(set, fields.values())) if len(fields) > 1 else set()
    short = {
        name: ",".join(field for field in named if field not in shared)
        for name, named in fields.items()
    }
    if not all(short.values()) or len(set(short.values())) < len(short):
        return comparison
    return _renamed(comparison, lambda name: short.get(name, name))


def _fields(name: str) -> list[str]:
    """Return the fields in a plan's name; commas inside brackets belong to a value."""
    return re.split(r",(?![^\[{]*[\]}])", name)


def _renamed(comparison: Comparison, rename: Rename) -> Comparison:
    renamed = {
        "plans": tuple(
            plan.model_copy(update={"name": rename(plan.name)})
            for plan in comparison.plans
        ),
        "flips": tuple(_crossover(one, rename) for one in comparison.flips),
        "rules": tuple(_head_to_head(one, rename) for one in comparison.rules),
    }
    return comparison.model_copy(update=renamed)


def _crossover(crossover: Crossover, rename: Rename) -> Crossover:
    return Crossover(
        at=crossover.at,
        before=tuple(map(rename, crossover.before)),
        after=tuple(map(rename, crossover.after)),
    )


def _head_to_head(pair: HeadToHead, rename: Rename) -> HeadToHead:
    spans = (s.model_copy(update={"winner": rename(s.winner)}) for s in pair.spans)
    sides = (s.model_copy(update={"name": rename(s.name)}) for s in pair.sides)
    renamed = {
        "winner": rename(pair.winner),
        "loser": rename(pair.loser),
        "spans": tuple(spans),
        "sides": tuple(sides),
    }
    return pair.model_copy(update=renamed)
