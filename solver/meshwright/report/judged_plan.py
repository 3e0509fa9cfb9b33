"""The plan that is judged, by who decided its fields, and the nearest one that fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.plans.rule import BrokenRule
from meshwright.report.tables import Lines, seconds_text
from meshwright.results.explanation import Explanation, JudgedField, NearestPlan

WIDTH = 100
"""Characters of a line of fields, beside its heading."""

ORIGINS = {
    "given": "given",
    "follows": "follows",
    "chosen": "chosen here",
}
"""Who decided a field, as a heading."""


def judged_lines(explanation: Explanation) -> Lines:
    """Return the fields of the plan that is judged, as `--plan` reads them."""
    is_own = explanation.fits or explanation.nearest is None
    title = "The plan judged" if is_own else "The plan judged, which comes closest"
    return Lines(title, tuple(_by_origin(explanation.judged)))


def _by_origin(fields: tuple[JudgedField, ...]) -> Iterator[str]:
    for origin, heading in ORIGINS.items():
        named = [f"{own.name}={own.value}" for own in fields if own.origin == origin]
        if named:
            yield from _wrapped(heading, named)


def _wrapped(heading: str, fields: Sequence[str]) -> list[str]:
    """Return fields after their heading, in lines that break between fields alone."""
    lines = [""]
    for text in fields:
        joined = f"{lines[-1]}, {text}" if lines[-1] else text
        if len(joined) > WIDTH and lines[-1]:
            lines[-1] += ","
            lines.append(text)
        else:
            lines[-1] = joined
    return [
        f"{heading if not index else '':<13}{line}" for index, line in enumerate(lines)
    ]


def origin_text(rule: BrokenRule, fields: Iterable[JudgedField]) -> str:
    """Return which of the values that a rule compares were given, and which follow."""
    by_name = {own.name: own.origin for own in fields}
    parts = []
    for origin, heading in ORIGINS.items():
        names = [name for name in rule.compared if by_name.get(name) == origin]
        if names:
            parts.append(f"{heading}: {', '.join(names)}")
    return "; ".join(parts)


def nearest_lines(nearest: NearestPlan) -> Lines:
    """Return the nearest plan that fits, with the fields that it changes."""
    count = len(nearest.changes)
    changed = "1 field changed" if count == 1 else f"{count} fields changed"
    price = f"{1 + nearest.price:.2f} times {nearest.against}"
    step = seconds_text(nearest.step_s)
    quote = '"' if "'" in nearest.text else "'"
    lines = [
        f"--plan {quote}{nearest.text}{quote}",
        *_wrapped("changed", nearest.changes),
    ]
    if nearest.kept:
        lines += _wrapped("as asked", nearest.kept)
    title = f"The nearest plan that fits: {changed}, {step} a step, {price}"
    return Lines(title, tuple(lines))
