"""A plan with all that pages draw of it, as data."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.results.priced_plan import PricedPlan
from meshwright.results.timeline import Timeline
from meshwright.spec.cluster import Cluster


@dataclass(frozen=True)
class Launch:
    """The files that start a plan, or why there are none."""

    target: str = ""
    version: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """Name and text of every file."""
    refused: str = ""
    """Why the framework cannot be told the plan; empty where it can."""


@dataclass(frozen=True)
class DrawnPlan:
    """A plan, priced, on the clock, and on its cluster."""

    name: str
    priced: PricedPlan
    timeline: Timeline
    capacity_gib: tuple[float, ...]
    """Memory of a GPU, of every stage."""
    cluster: Cluster
    launch: Launch
    note: str = ""
    """What to know of it first, such as that it does not fit."""


@dataclass(frozen=True)
class NearPlan:
    """A plan that is known beside the best, and why it is known."""

    priced: PricedPlan
    why: str
    is_first: bool = False
    """Whether it is the plan that the answer is about."""
