"""What CP-SAT chooses from: skeletons, in whole ticks of time and chunks of memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

Pairs = tuple[tuple[int, int], ...]
"""A split: the layers and the recomputed layers of every stage."""

LARGEST_HORIZON = 2**48
"""Ticks that no step may take: three days, and well inside CP-SAT's 64-bit sums."""


@dataclass(frozen=True)
class StageAmount:
    """An amount of one stage, linear in its layers n and recomputed layers r.

    It is `fixed + n x per_layer + r x per_recomputed` where the skeleton is chosen,
    and 0 where it is not.
    """

    fixed: int
    per_layer: int
    per_recomputed: int = 0

    def of(self, layers: int, recomputed: int) -> int:
        """Return the amount of a stage with these layers and recomputed layers."""
        return self.fixed + layers * self.per_layer + recomputed * self.per_recomputed


@dataclass(frozen=True)
class LinearRule:
    """An inequality that a split may keep.

    sum over all stages of n x per_layer + r x per_recomputed, and the amounts of the
    slowest stage and of the last to finish, together no more than `most`
    """

    per_layer: tuple[int, ...]
    per_recomputed: tuple[int, ...]
    most: int
    of_slowest: tuple[StageAmount, ...] = ()
    """What each stage adds where it is the slowest; empty if none adds anything."""
    of_last: tuple[StageAmount, ...] = ()
    """What each stage adds where it is the last to finish."""


@dataclass(frozen=True)
class AnyOf:
    """Inequalities of which a split must keep one; it has none if there are none."""

    rules: tuple[LinearRule, ...]


@dataclass(frozen=True)
class StageChoice:
    """One stage of a skeleton: the times it adds, and the layers it may hold."""

    fill: StageAmount
    """Ticks that the stage adds while the pipeline fills and drains."""
    pace: StageAmount
    """Ticks of all further micro-batches, if this stage is the slowest one."""
    sync: StageAmount
    """Ticks at the end of the step, if this stage is the last to finish."""
    memory: StageAmount
    """Chunks that the layers take; a recomputed layer gives some of them back."""
    capacity: int
    """Chunks that the stage has for its layers."""
    fewest_layers: int
    most_layers: int
    links: tuple[StageAmount, ...] = ()
    """Ticks per step for which the stage keeps each of its links busy."""

    @property
    def most_recomputed(self) -> int:
        """Return the most recomputed layers: none where that frees no memory."""
        return self.most_layers if self.memory.per_recomputed else 0


@dataclass(frozen=True)
class SkeletonChoice:
    """One skeleton, which is chosen as a whole and then split over its stages.

    step = sum of the stages' fill + the longest pace + the longest sync
    """

    stages: tuple[StageChoice, ...]
    is_recomputing: bool = False
    """Whether some layer must be recomputed."""
    recomputes_all: bool = False
    """Whether every layer is recomputed, which then is part of each layer."""
    same_in_chunks: int = 0
    """Chunks of a stage, where the same number of layers is recomputed in all chunks of
    the model; 0 where each stage has a number of its own."""
    forbidden: tuple[Pairs, ...] = ()
    """Splits that were found to break a rule."""
    clauses: tuple[AnyOf, ...] = ()
    """What the user's rules say of splits, as far as it is linear."""
    seconds: tuple[StageAmount, ...] = ()
    """Time of each stage per micro-batch, in any unit; where rules ask for it."""
    rounding: int = 0
    """What times of stages may be off by rounding, in their units."""

    @property
    def most_in_each_chunk(self) -> int:
        """Return the most recomputed layers of every chunk, where they are the same."""
        most = max(stage.most_recomputed for stage in self.stages)
        return self.in_each_chunk([(0, most)]) if self.same_in_chunks else 0

    def in_each_chunk(self, split: Iterable[tuple[int, int]]) -> int:
        """Return the recomputed layers of every chunk from those of every stage."""
        most = max(recomputed for _, recomputed in split)
        return -(-most // self.same_in_chunks) if self.same_in_chunks else 0


@dataclass(frozen=True)
class Problem:
    """Skeletons in the order of preference among equals, and what holds for all."""

    skeletons: tuple[SkeletonChoice, ...]
    layers: int
    """Layers of the model."""
    horizon: int
    """Ticks that the best plan does not exceed."""
    hint: tuple[int, Pairs] | None = None
    """The index of a skeleton, and the best split known of it."""
    pinned_layers: tuple[int, ...] | None = None
    """Layers of every stage, where the user pins them."""
    pinned_recompute: tuple[int, ...] | None = None
    """Recomputed layers of every stage, where the user pins them."""
    recomputes_every_layer: bool = False
    """Whether a skeleton that recomputes must recompute every layer."""
    link_share: float | None = None
    """Share of the step for which a link may be busy at most."""

    def without(self, skeleton: int, split: Pairs) -> Problem:
        """Return the problem with one split of a skeleton forbidden."""
        skeletons = list(self.skeletons)
        choice = skeletons[skeleton]
        skeletons[skeleton] = replace(choice, forbidden=(*choice.forbidden, split))
        return replace(self, skeletons=tuple(skeletons))


@dataclass(frozen=True)
class Proof:
    """The plan that CP-SAT found, and the bound that it proved."""

    status: str
    """optimal, feasible, infeasible or unknown."""
    skeleton: int
    """Index of the chosen skeleton; -1 where none was found."""
    split: Pairs
    ticks: int
    """Ticks of the step of the plan found."""
    bound: float
    """Ticks that no plan goes below."""
