"""What the planner, explanations and searches hand on does not change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import meshwright

ROOMS = ("planner", "explanations", "sweeps")

STATE = {
    "Wanted", "_Writer", "OpenChoice", "OpenSearch", "RentalChoice", "RuleEffort",
    "SearchRun", "TradeOff",
}  # fmt: skip
"""Classes that hold what a search has found so far."""


def dataclasses_of(room: str) -> Iterator[type]:
    folder = Path(meshwright.__file__).parent / room
    for path in sorted(folder.glob("*.py")):
        name = f"meshwright.{room}.{path.stem}"
        yield from (
            one
            for one in vars(import_module(name)).values()
            if dataclasses.is_dataclass(one)
            and isinstance(one, type)
            and one.__module__ == name
        )


def test_all_that_is_handed_on_is_frozen_but_the_state_of_searches() -> None:
    every = [one for room in ROOMS for one in dataclasses_of(room)]
    assert len(every) > 40
    # Dataclasses that are frozen refuse to be set.
    changing = {one.__name__ for one in every if "__setattr__" not in vars(one)}
    assert changing == STATE
