"""Rules of the user on splits, as linear inequalities joined by and and or.

Times of parts of a step are those of its slowest stage, and of the stage that finishes
last. Which stages these are is a choice of the model, so that both stay linear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright.cpsat.ortools import CpModel, IntVar, LinearExpr, LinearExprT
from meshwright.planner.pipeline import AnyOf, LinearRule, Pipeline, StageAmount


def require_rules(
    cp: CpModel,
    pipeline: Pipeline,
    layers: Sequence[IntVar],
    recomputed: Sequence[IntVar],
    amount: Callable[[int, StageAmount], LinearExpr],
) -> None:
    """Require one of the inequalities of each clause of a pipeline.

    sum of a_e n_e + b_e r_e, + what the slowest and the last stage add, <= most
    """
    writer = _Writer(cp, pipeline, [*layers, *recomputed], amount)
    for clause in pipeline.clauses:
        writer.require_any(clause)


@dataclass
class _Writer:
    """Writes the rules of one pipeline."""

    cp: CpModel
    pipeline: Pipeline
    counts: Sequence[IntVar]
    """Layers of every stage, then recomputed layers of every stage."""
    amount: Callable[[int, StageAmount], LinearExpr]
    _slowest: list[IntVar] | None = None
    _last: list[IntVar] | None = None

    def require_any(self, clause: AnyOf) -> None:
        """Require one inequality of a clause."""
        if len(clause.rules) == 1:
            self._require(clause.rules[0])
            return
        ways = [self.cp.new_bool_var("") for _ in clause.rules]
        self.cp.add_bool_or(ways)
        for way, rule in zip(ways, clause.rules, strict=True):
            self._require(rule, way)

    def _require(self, rule: LinearRule, *when: IntVar) -> None:
        needed: list[LinearExprT] = [
            LinearExpr.weighted_sum(
                self.counts, [*rule.per_layer, *rule.per_recomputed]
            )
        ]
        if rule.of_slowest:
            needed.append(self._of_one(self.slowest, rule.of_slowest))
        if rule.of_last:
            needed.append(self._of_one(self.last, rule.of_last))
        self.cp.add(sum(needed) <= rule.most).only_enforce_if(*when)

    def _of_one(self, is_it: list[IntVar], amounts: tuple[StageAmount, ...]) -> IntVar:
        """Return a variable that is at least the amount of the selected stage."""
        most = self._reach(amounts)
        amount = self.cp.new_int_var(-most, most, "")
        for e, literal in enumerate(is_it):
            held = self.amount(e, amounts[e])
            self.cp.add(amount >= held).only_enforce_if(literal)
        return amount

    def _reach(self, amounts: tuple[StageAmount, ...]) -> int:
        """Return an upper bound on the absolute value of all amounts.

        All domains of a model together must fit into 64 bits.
        """
        return max(
            abs(amount.fixed)
            + abs(amount.per_layer) * stage.most_layers
            + abs(amount.per_recomputed) * stage.most_recomputed
            for amount, stage in zip(amounts, self.pipeline.stages, strict=True)
        )

    @property
    def slowest(self) -> list[IntVar]:
        """Return for each stage whether it is the slowest one."""
        if self._slowest is None:
            self._slowest = self._longest(self.pipeline.seconds)
        return self._slowest

    @property
    def last(self) -> list[IntVar]:
        """Return for each stage whether it is the last to finish."""
        if self._last is None:
            syncs = tuple(stage.sync for stage in self.pipeline.stages)
            self._last = self._longest(syncs)
        return self._last

    def _longest(self, times: tuple[StageAmount, ...]) -> list[IntVar]:
        """Return literals of which one is true, for a stage that takes longest.

        Of stages that take equally long but for rounding it may be any.
        """
        literals = [self.cp.new_bool_var("") for _ in times]
        self.cp.add_exactly_one(literals)
        taken = [self.amount(e, time) for e, time in enumerate(times)]
        for e, literal in enumerate(literals):
            for other in taken[:e] + taken[e + 1 :]:
                least = other - self.pipeline.rounding
                self.cp.add(taken[e] >= least).only_enforce_if(literal)
        return literals
