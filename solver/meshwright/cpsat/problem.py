"""What CP-SAT chooses from: skeletons as plain whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

Pairs = tuple[tuple[int, int], ...]
"""Layers and recomputed layers of every stage."""

LARGEST_HORIZON = 2**48
"""Ticks that no step may take: three days, and well inside CP-SAT's 64-bit sums."""


@dataclass(frozen=True)
class LinkUse:
    """Ticks per step that one link of one stage is busy: affine in its layers."""

    base: int
    per_layer: int
    per_recomputed: int


@dataclass(frozen=True)
class StageChoice:
    """One stage of a skeleton, in ticks and chunks."""

    layer: int
    recompute: int
    pace_layer: int
    pace_recompute: int
    sync_layer: int
    least: int
    """Fewest layers, where the skeleton is chosen."""
    most: int
    extra: int
    pace_extra: int
    sync: int
    room: int
    per_layer: int
    freed: int
    """Chunks that a recomputed layer gives back; 0 where none may be recomputed."""
    links: tuple[LinkUse, ...] = ()


@dataclass(frozen=True)
class SkeletonChoice:
    """One skeleton: chosen as a whole, with layers and recomputed layers per stage.

    step = sum of stages + the longest pace + the longest sync, where a stage of n
    layers, r of them recomputed, adds n x layer + r x recompute + extra, has a pace of
    n x pace_layer + r x pace_recompute + pace_extra, and a sync of n x sync_layer +
    sync.
    """

    stages: tuple[StageChoice, ...]
    is_recomputing: bool = False
    """Whether some layer must be recomputed."""


@dataclass(frozen=True)
class Problem:
    """Skeletons in the order of preference among equals, and what holds for all."""

    skeletons: tuple[SkeletonChoice, ...]
    layers: int
    horizon: int
    """Ticks that the best plan does not pass."""
    hint: tuple[int, Pairs] | None = None
    """A skeleton and its best constructive split."""
    pinned_layers: tuple[int, ...] | None = None
    pinned_recompute: tuple[int, ...] | None = None
    link_share: float | None = None


@dataclass(frozen=True)
class Proof:
    """What CP-SAT found and proved."""

    status: str
    """optimal, feasible, infeasible or unknown."""
    skeleton: int
    split: Pairs
    ticks: int
    bound: float
