"""Rules of the user on splits, as linear inequalities joined by and and or.

Times of parts of a step are those of its slowest stage, and of the stage that finishes
last. Which stages these are is a choice of the model, so that both stay linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.cpsat.ortools_import import CpModel, IntVar, LinearExpr, LinearExprT
from meshwright.cpsat.problem import AnyOf, LinearRule, Problem, StageAmount
from meshwright.cpsat.variables import SkeletonVars


def keep_user_rules(
    model: CpModel, _problem: Problem, skeletons: Sequence[SkeletonVars]
) -> None:
    """Ensure that splits keep the rules of the user, as far as these are linear.

    One of the inequalities of each clause holds:
    sum of a_e n_e + b_e r_e, + what the slowest and the last stage add, <= most
    """
    for skeleton in skeletons:
        clauses = skeleton.choice.clauses
        if clauses:
            writer = _Writer(model, skeleton)
            for clause in clauses:
                writer.require_any(clause)


@dataclass
class _Writer:
    """Writes the rules of one skeleton."""

    model: CpModel
    skeleton: SkeletonVars
    _slowest: list[IntVar] | None = None
    _last: list[IntVar] | None = None

    def require_any(self, clause: AnyOf) -> None:
        """Require one inequality of a clause, if the skeleton is chosen."""
        chosen = self.skeleton.chosen
        if len(clause.rules) == 1:
            self._require(clause.rules[0], chosen)
            return
        ways = [self.model.new_bool_var("") for _ in clause.rules]
        self.model.add_bool_or([*ways, chosen.negated()])
        for way, rule in zip(ways, clause.rules, strict=True):
            self.model.add_implication(way, chosen)
            self._require(rule, way)

    def _require(self, rule: LinearRule, when: IntVar) -> None:
        needed: list[LinearExprT] = [
            LinearExpr.weighted_sum(
                [*self.skeleton.layers, *self.skeleton.recomputed],
                [*rule.per_layer, *rule.per_recomputed],
            )
        ]
        if rule.of_slowest:
            needed.append(self._of_one(self.slowest, rule.of_slowest))
        if rule.of_last:
            needed.append(self._of_one(self.last, rule.of_last))
        self.model.add(sum(needed) <= rule.most).only_enforce_if(when)

    def _of_one(self, is_it: list[IntVar], amounts: tuple[StageAmount, ...]) -> IntVar:
        """Return a variable not below the amount of the one stage that is it."""
        most = self._reach(amounts)
        amount = self.model.new_int_var(-most, most, "")
        for e, literal in enumerate(is_it):
            own = self.skeleton.amount(e, amounts[e])
            self.model.add(amount >= own).only_enforce_if(literal)
        return amount

    def _reach(self, amounts: tuple[StageAmount, ...]) -> int:
        """Return what none of the amounts exceeds, whichever its sign.

        All domains of a model together must fit into 64 bits.
        """
        return max(
            abs(own.fixed)
            + abs(own.per_layer) * stage.most_layers
            + abs(own.per_recomputed) * stage.most_recomputed
            for own, stage in zip(amounts, self.skeleton.choice.stages, strict=True)
        )

    @property
    def slowest(self) -> list[IntVar]:
        """Return for each stage whether it is the slowest one."""
        if self._slowest is None:
            self._slowest = self._longest(self.skeleton.choice.seconds)
        return self._slowest

    @property
    def last(self) -> list[IntVar]:
        """Return for each stage whether it is the last to finish."""
        if self._last is None:
            syncs = tuple(stage.sync for stage in self.skeleton.choice.stages)
            self._last = self._longest(syncs)
        return self._last

    def _longest(self, times: tuple[StageAmount, ...]) -> list[IntVar]:
        """Return literals of which one is true, for a stage that takes longest.

        Of stages that take equally long but for rounding it may be any.
        """
        skeleton, model = self.skeleton, self.model
        literals = [model.new_bool_var("") for _ in times]
        model.add(sum(literals) == skeleton.chosen)
        taken = [skeleton.amount(e, time) for e, time in enumerate(times)]
        for e, literal in enumerate(literals):
            for other in taken[:e] + taken[e + 1 :]:
                least = other - skeleton.choice.rounding
                model.add(taken[e] >= least).only_enforce_if(literal)
        return literals
