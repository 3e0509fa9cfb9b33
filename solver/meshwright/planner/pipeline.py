"""One row as a pipeline: what its stages take and hold, and which splits it may have.

All amounts are whole numbers: ticks of time and chunks of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

Pairs = tuple[tuple[int, int], ...]
"""A split: the layers and the recomputed layers of every stage."""

LARGEST_HORIZON = 2**48
"""Ticks that no step may take: three days, and well inside CP-SAT's 64-bit sums."""

LARGEST_OBJECTIVE = 2**60
"""Objectives stay below this: CP-SAT takes larger ones, whose sums have signs of both
kinds, for models that may overflow 64 bits."""

SHARE_UNIT = 10_000
"""Shares of links are compared in hundredths of a percent, rounded down."""


@dataclass(frozen=True)
class StageAmount:
    """An amount of one stage, linear in its layers n and recomputed layers r.

    amount = fixed + n x per_layer + r x per_recomputed
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
    """Amount of each stage if it is the slowest; empty if all are 0."""
    of_last: tuple[StageAmount, ...] = ()
    """Amount of each stage if it is the last to finish."""


@dataclass(frozen=True)
class AnyOf:
    """Inequalities of which a split must keep one; it has none if there are none."""

    rules: tuple[LinearRule, ...]


@dataclass(frozen=True)
class PipelineStage:
    """One stage of a pipeline: the times it adds, and the layers it may hold."""

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
class Pipeline:
    """A pipeline, and the constraints on the split of its layers over its stages.

    step = sum of the stages' fill + the longest pace + the longest sync, the last two
    at least 0
    """

    stages: tuple[PipelineStage, ...]
    layers: int
    """Layers of the model."""
    horizon: int = LARGEST_HORIZON
    """Ticks that the best split does not exceed."""
    is_recomputing: bool = False
    """Whether some layer must be recomputed."""
    recomputes_all: bool = False
    """Whether every layer is recomputed, which then is part of each layer."""
    recomputes_every_layer: bool = False
    """Whether every layer must be recomputed, where some layer must be."""
    same_in_chunks: int = 0
    """Chunks per stage, if all chunks of the model recompute equally many layers; 0 if
    stages may differ."""
    pinned_layers: tuple[int, ...] | None = None
    """Layers of every stage, where the user pins them."""
    pinned_recompute: tuple[int, ...] | None = None
    """Recomputed layers of every stage, where the user pins them."""
    link_share: float | None = None
    """Share of the step for which a link may be busy at most."""
    hint: Pairs | None = None
    """The best split known."""
    forbidden: tuple[Pairs, ...] = ()
    """Splits that were found to break a rule."""
    clauses: tuple[AnyOf, ...] = ()
    """The linear part of the user's rules on splits."""
    seconds: tuple[StageAmount, ...] = ()
    """Time of each stage per micro-batch, in any unit; where rules ask for it."""
    rounding: int = 0
    """Largest rounding error of the times of stages, in their units."""

    @property
    def most_in_each_chunk(self) -> int:
        """Return the most recomputed layers of every chunk, where they are the same."""
        most = max(stage.most_recomputed for stage in self.stages)
        return self.in_each_chunk([(0, most)])

    @property
    def chunk_numbers(self) -> range:
        """Return how many layers each chunk may recompute, where all do the same."""
        most = self.most_in_each_chunk
        if not self.is_recomputing:
            return range(most + 1)
        return range(most if self.recomputes_every_layer else 1, most + 1)

    def in_each_chunk(self, split: Iterable[tuple[int, int]]) -> int:
        """Return the recomputed layers of every chunk from those of every stage."""
        most = max(recomputed for _, recomputed in split)
        return -(-most // self.same_in_chunks) if self.same_in_chunks else 0

    def without(self, split: Pairs) -> Pipeline:
        """Return the pipeline with one split forbidden."""
        return replace(self, forbidden=(*self.forbidden, split))


@dataclass(frozen=True)
class Proof:
    """The best split found, and the lower bound proven for all splits."""

    status: str
    """optimal, feasible, infeasible, unknown, or slower: no split takes less than the
    bound."""
    split: Pairs
    ticks: int
    """Ticks of the step of the split; 0 without one."""
    bound: float
    """Lower bound on the ticks of every split."""
    row: int = -1
    """The row whose split it is; -1 where no row has a plan."""

    @property
    def has_plan(self) -> bool:
        """Return whether a split was found."""
        return self.status in ("optimal", "feasible")

    @property
    def is_open(self) -> bool:
        """Return whether something was left unproven."""
        return self.status in ("feasible", "unknown")
