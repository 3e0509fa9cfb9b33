"""The map of a lattice: what became of every skeleton, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshwright.spec.plan_fields import Value

State = Literal["best", "near", "slower", "memory"]
"""What became of the skeletons of a dot: the best plan is among them; one may be within
the tolerance of the fastest plan; all that fit are slower; none fits in memory."""

Fields = Mapping[str, Value]
"""Values of plan fields by name."""


@dataclass(frozen=True)
class Dot:
    """Skeletons that share the fields by which a map tells them apart."""

    state: State
    fields: Fields
    """The plan fields of the skeleton that stands for them: the one with the least
    bound of those that fit, or else one that holds little."""
    techniques: str
    """What that skeleton does in the words of the field, such as 'TP + PP'."""
    skeletons: int
    """How many they are, on all meshes."""
    step_s: float
    """Lower bound on their step time; that of the best plan where that is among them.
    Memory is left aside where none fits."""
    is_exact: bool
    """Whether it is the time of a plan, and no bound."""
    memory_gib: float
    """What the fullest GPU holds of the skeleton that stands for them, with a split of
    layers that fits, or else with the one that holds the least."""


@dataclass(frozen=True)
class Refusal:
    """Degrees that one rule refuses before anything is priced."""

    rule: str
    sentence: str
    count: int
    examples: tuple[Fields, ...]
    """Some of the degrees, or all if they are few."""


@dataclass(frozen=True)
class LatticeMap:
    """What became of the skeletons of a lattice, as dots."""

    skeletons: int
    """Legal skeletons, on all meshes."""
    dots: tuple[Dot, ...]
    shared: tuple[str, ...]
    """Fields that the skeletons of a dot share; empty where each is a dot of its own,
    with all its meshes."""
    refusals: tuple[Refusal, ...]
    usable_gib: float
    within: float
    """Share of the fastest step time within which a dot is near."""
    has_open_rules: bool
    """Whether limits on links, or rules on splits of layers, are left out of bounds."""
    is_of_parts: bool = False
    """Whether it is of one way to use a cluster of unlike parts, that of the best plan.
    """
