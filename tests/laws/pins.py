"""Pins never beat the optimum, and those that it meets keep it."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TypeVar

from tests.helpers.tight import CHOICES
from tests.laws.asked import Answer, ask, pinned, pins_of, seconds_of
from tests.laws.law import Checks, Data, Law
from tests.laws.specs import every_data

MOST_FIELDS = 3
"""Fields of each plan that are pinned, each alone."""

T = TypeVar("T")


def pins_never_beat_the_optimum(data: Data, choice: Random) -> Checks:
    """Pin fields of the optimum, of the plans that come next, and any other value."""
    is_served = "inference" in data
    free = ask(data, top=1 if is_served else 3)
    if free.plan is None:
        return
    for name, value in some(pins_of(free.plan).items(), choice):
        found = ask(pinned(data, {name: value}))
        told = f"the optimum's {name}={value}: {found.plan} for {free.plan}"
        yield found.plan == free.plan and found.step_s == free.step_s, told
    for other in free.others:
        for name, value in some(pins_of(other.plan).items(), choice):
            found, most_s = ask(pinned(data, {name: value})), seconds_of(other)
            told = f"{name}={value} of {other.plan}: {found.step_s!r} s for {most_s!r}"
            yield free.is_no_slower(found), told
            yield found.step_s <= most_s + _slack_s(found, free), told
    for name, values in some(CHOICES.items(), choice):
        value = choice.choice(values)
        if not is_served and name not in data["pins"]:
            found = ask(pinned(data, {name: value}))
            yield free.is_no_slower(found), f"{name}={value}: {found.step_s!r} s"


def some(values: Iterable[T], choice: Random) -> list[T]:
    """Return a few of many, in any order."""
    known = list(values)
    return choice.sample(known, min(MOST_FIELDS, len(known)))


def _slack_s(*answers: Answer) -> float:
    return sum(answer.rounding_s for answer in answers)


LAW = Law(
    "pins",
    "a pin never beats the optimum, and one that it meets keeps it",
    every_data(),
    pins_never_beat_the_optimum,
    tested=8,
)
