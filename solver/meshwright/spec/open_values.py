"""Numbers that a spec leaves open: lists or ranges, from which the solver chooses."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from meshwright.spec.base import Count

MOST_VALUES = 1_024
"""Most numbers that one field may be left open to."""

ACCEPTED = "expected a whole number, a list, or {min: .., max: ..}, with step"


def is_open(value: object) -> bool:
    """Return whether the value of a field leaves a number open."""
    return isinstance(value, list | dict)


def _as_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return _of_range(value)
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise ValueError("expected at least one number")
    _refuse_many(len(values))
    return values


def _of_range(value: dict[Any, Any]) -> list[int]:
    """Return the numbers of a range, both ends included."""
    low, high, step = value.get("min", 1), value.get("max"), value.get("step", 1)
    is_whole = all(type(own) is int and own > 0 for own in (low, high, step))
    if not is_whole or set(value) - {"min", "max", "step"}:
        raise ValueError(f"{ACCEPTED}: whole numbers above 0")
    assert isinstance(high, int), "checked above"
    if low > high:
        raise ValueError(f"min {low} is above max {high}")
    _refuse_many((high - low) // step + 1)
    return list(range(low, high + 1, step))


def _refuse_many(count: int) -> None:
    if count > MOST_VALUES:
        told = f"leaves {count:,} numbers open; accepted: up to {MOST_VALUES:,}"
        raise ValueError(told)


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))


_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 1}

OPEN_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _NUMBER,
        {"type": "array", "items": _NUMBER, "minItems": 1, "maxItems": MOST_VALUES},
        {
            "type": "object",
            "properties": dict.fromkeys(("min", "max", "step"), _NUMBER),
            "required": ["max"],
            "additionalProperties": False,
        },
    ]
}
"""What a file may hold where a number can be left open."""

OpenNumbers = Annotated[
    tuple[Count, ...],
    AfterValidator(_distinct),
    BeforeValidator(_as_numbers),
    WithJsonSchema(OPEN_SCHEMA),
]
"""The numbers that a field may become, the least first."""
