"""Plans that are compared, by what tells them apart."""

from __future__ import annotations

import re
from collections.abc import Callable

from meshwright.results.comparison import Comparison, Flip, Rule

Name = Callable[[str], str]


def shortened(own: Comparison) -> Comparison:
    """Return a comparison whose plans go by the fields that they do not all have."""
    fields = {one.name: _fields(one.name) for one in own.plans}
    shared = set.intersection(*map(set, fields.values())) if len(fields) > 1 else set()
    short = {
        name: ",".join(own for own in parts if own not in shared)
        for name, parts in fields.items()
    }
    if not all(short.values()) or len(set(short.values())) < len(short):
        return own
    return _renamed(own, lambda name: short.get(name, name))


def _fields(name: str) -> list[str]:
    """Return the fields of a plan; commas inside brackets belong to a value."""
    return re.split(r",(?![^\[{]*[\]}])", name)


def _renamed(own: Comparison, name: Name) -> Comparison:
    plans = (one.model_copy(update={"name": name(one.name)}) for one in own.plans)
    flips = tuple(_flip(flip, name) for flip in own.flips)
    rules = tuple(_rule(rule, name) for rule in own.rules)
    changed = {"plans": tuple(plans), "flips": flips, "rules": rules}
    return own.model_copy(update=changed)


def _flip(own: Flip, name: Name) -> Flip:
    sides = (own.before, own.after)
    before, after = (tuple(name(one) for one in side) for side in sides)
    return Flip(at=own.at, before=before, after=after)


def _rule(own: Rule, name: Name) -> Rule:
    spans = (s.model_copy(update={"winner": name(s.winner)}) for s in own.spans)
    sides = (s.model_copy(update={"name": name(s.name)}) for s in own.sides)
    both = {"winner": name(own.winner), "loser": name(own.loser)}
    changed = {"spans": tuple(spans), "sides": tuple(sides)}
    return own.model_copy(update={**both, **changed})
