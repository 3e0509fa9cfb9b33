"""What rules compare, as lines over the split of one skeleton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.bounds.upper_bounds import with_all_recomputed
from meshwright.check.check import values_of
from meshwright.check.rule_values import PlanValues
from meshwright.check.scored import Scored, score
from meshwright.cost.job import Job
from meshwright.cost.schedule import StepWeights, step_weights
from meshwright.lattice.lattice import Lattice
from meshwright.plans.columns import Floats
from meshwright.plans.encoding import to_plan
from meshwright.plans.skeletons import Skeletons
from meshwright.solver.piecewise import Line, Piecewise, constant_line, extreme
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.prices import per_token
from meshwright.spec.rule_names import LINKS, OF_SPEC, OF_STAGES

POINTS = ((1, 0), (2, 0), (1, 1))
"""Layers and recomputed layers of all stages, at which amounts are computed."""


@dataclass(frozen=True)
class SplitLines:
    """The values that rules compare, each a line over splits of one skeleton.

    Amounts are (3, stages): fixed, per layer, per recomputed layer.
    """

    values: PlanValues
    """The same at one split; of them, only what no split changes is taken."""
    stages: Mapping[str, Floats]
    seconds: Mapping[str, Floats]
    """Of each part of a micro-batch."""
    sync: Mapping[str, Floats]
    """Of each part of the end of the step."""
    links: Floats
    """Seconds per step for which stages keep links busy, (3, stages, links)."""
    weights: StepWeights
    microbatches: int

    @property
    def count(self) -> int:
        """Return the number of stages."""
        return int(self.stages["layers"].shape[1])

    @property
    def tau(self) -> Floats:
        """Return the seconds of each stage per micro-batch."""
        return np.asarray(sum(self.seconds.values()))

    @property
    def step(self) -> Piecewise | None:
        """Return the time of the step; None if its slowest stage is another's pace."""
        if self.weights.deferred.any():
            return None
        fill = float(self.weights.fill_share[0]) * self.tau
        pace = float(self.weights.pace_count[0]) * self.tau
        ends = np.asarray(sum(self.sync.values()))
        return Piecewise((Line(float(fill[0].sum()), fill[1:], pace, ends),))

    def number(self, name: str) -> Piecewise | None:
        """Return a number of the plan, or None if it is no line."""
        if name in FIELD or name == "dp" or name in OF_SPEC:
            return self.constant(float(self.values.number(name).low[0]))
        if name == "step_s":
            return self.step
        if name == "parts.bubble":
            return self._bubble()
        if name.startswith("parts."):
            return self._part(name.removeprefix("parts."))
        training, step = self.values.spec.training, self.step
        tokens = training.seq_len * training.global_batch
        priced = per_token(self.values.spec, tokens)
        if name in priced:
            return step.times(priced[name]) if step else None
        known = self.values.numbers
        rate = constant_line(known[name] * known["step_s"], self.count)
        shared = Line(rate.fixed, rate.everywhere, rate.slowest, rate.last, True)
        return Piecewise((shared,)) if step else None

    def constant(self, value: float) -> Piecewise:
        """Return a number that no split changes."""
        return Piecewise((constant_line(value, self.count),))

    def each(self, name: str) -> list[Piecewise]:
        """Return what every stage has."""
        return [self._of_stage(amounts) for amounts in _columns(self.stages[name])]

    def link(self, index: int) -> Piecewise | None:
        """Return the share of the step for which one link is busy."""
        if self.step is None:
            return None
        stages = _columns(self.links[:, :, index])
        return extreme("max", [self._of_stage(own, is_share=True) for own in stages])

    def at(self, name: str, index: int | str) -> Piecewise | None:
        """Return what one stage or link has."""
        if name == LINKS:
            names = list(self.values.link_names)
            return self.link(names.index(str(index))) if index in names else None
        each = self.each(name)
        assert isinstance(index, int)
        return each[index] if -len(each) <= index < len(each) else None

    def _of_stage(
        self, amounts: tuple[int, Floats], is_share: bool = False
    ) -> Piecewise:
        stage, (fixed, per_layer, per_recomputed) = amounts
        everywhere, none = np.zeros((2, self.count)), np.zeros((3, self.count))
        everywhere[:, stage] = per_layer, per_recomputed
        return Piecewise((Line(float(fixed), everywhere, none, none, is_share),))

    def _part(self, name: str) -> Piecewise:
        none = np.zeros((3, self.count))
        on_slowest = self.microbatches * self.seconds.get(name, none)
        return Piecewise((Line(0.0, none[:2], on_slowest, self.sync.get(name, none)),))

    def _bubble(self) -> Piecewise | None:
        if self.weights.deferred.any():
            return None
        fill = float(self.weights.fill_share[0]) * self.tau
        none = np.zeros_like(fill)
        return Piecewise((Line(float(fill[0].sum()), fill[1:], -fill, none),))


def split_lines(job: Job, lattice: Lattice, row: Skeletons) -> SplitLines:
    """Return the values of one placed skeleton as lines over its splits."""
    place, stages, scored = lattice.place(row), int(row.pp[0]), list[Scored]()
    for layers, recomputed in POINTS:
        counts = (np.full(stages, layers), np.full(stages, recomputed))
        plan = to_plan(row, 0, with_all_recomputed(job, row, *counts), place)
        scored.append(score(job, plan))
    found = [values_of(each) for each in scored]
    times = [each.times for each in scored]
    schedule = (row.schedule, row.microbatches, row.vpp, np.array(stages))
    return SplitLines(
        values=found[0],
        stages={
            name: _amounts([values.stages[name] for values in found])
            for name in OF_STAGES
        },
        seconds={
            part: _amounts([each.seconds[part] for each in times])
            for part in times[0].seconds
        },
        sync={
            part: _amounts([each.sync[part] for each in times])
            for part in times[0].sync
        },
        links=_amounts([each.busy_s for each in scored]),
        weights=step_weights(*schedule),
        microbatches=int(row.microbatches[0]),
    )


def _amounts(points: list[Floats]) -> Floats:
    """Return what is fixed, per layer and per recomputed layer, from `POINTS`."""
    one, two, recomputed = (np.asarray(point, dtype=np.float64) for point in points)
    return np.stack([2 * one - two, two - one, recomputed - one])


def _columns(amounts: Floats) -> list[tuple[int, Floats]]:
    return list(enumerate(amounts.T))
