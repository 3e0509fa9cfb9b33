"""The map of a lattice: the fate of every skeleton, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshwright.spec.plan_fields import Value

State = Literal["best", "near", "slower", "memory"]
"""State of a dot: it has the best plan; some skeleton may be within the tolerance of
the fastest plan; all skeletons that fit are slower; none fits in memory."""

Fields = Mapping[str, Value]
"""Values of plan fields by name."""


@dataclass(frozen=True)
class Dot:
    """Skeletons that share the fields by which a map tells them apart."""

    state: State
    fields: Fields
    """Plan fields of the skeleton that represents the dot: of those that fit the one
    with the least bound, or else one that needs little memory."""
    techniques: str
    """Techniques of that skeleton, such as 'TP + PP'."""
    skeletons: int
    """Number of skeletons in the dot, on all meshes."""
    step_s: float
    """Lower bound on their step time; the step time of the best plan in its dot. The
    bound ignores memory if none of them fits."""
    is_exact: bool
    """Whether `step_s` is the time of a plan, not a bound."""
    memory_gib: float
    """Memory of the fullest GPU of the representing skeleton, with a split of layers
    that fits, or else with the split that needs the least memory."""


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
    """The fate of the skeletons of a lattice, as dots."""

    skeletons: int
    """Legal skeletons, on all meshes."""
    dots: tuple[Dot, ...]
    shared: tuple[str, ...]
    """Fields that the skeletons of a dot share; empty if each dot is one skeleton on
    all its meshes."""
    refusals: tuple[Refusal, ...]
    usable_gib: float
    within: float
    """Share of the fastest step time within which a dot is near."""
    has_open_rules: bool
    """Whether limits on links, or rules on splits of layers, are left out of bounds."""
    is_of_parts: bool = False
    """Whether it shows only the best plan's way to use a cluster of unlike parts."""
