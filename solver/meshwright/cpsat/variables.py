"""The decision variables of a skeleton; all are 0 where it is not chosen."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cpsat.ortools_import import CpModel, IntVar, LinearExpr, LinearExprT
from meshwright.cpsat.problem import Problem, SkeletonChoice, StageAmount


@dataclass(frozen=True)
class SkeletonVars:
    """Whether a skeleton is chosen, and how its layers are split."""

    choice: SkeletonChoice
    chosen: IntVar
    """1 where the skeleton is the one chosen."""
    layers: list[IntVar]
    """Layers of every stage."""
    recomputed: list[IntVar]
    """Recomputed layers of every stage."""
    in_each_chunk: IntVar
    """Recomputed layers of every chunk, where all chunks recompute the same number."""
    longest_pace: IntVar
    """Ticks of the slowest stage's pace."""
    longest_sync: IntVar
    """Ticks of the stage that takes longest at the end of the step."""

    def amount(self, stage: int, amount: StageAmount) -> LinearExpr:
        """Return an amount of a stage as an expression: 0 unless chosen."""
        return LinearExpr.weighted_sum(
            [self.layers[stage], self.recomputed[stage], self.chosen],
            [amount.per_layer, amount.per_recomputed, amount.fixed],
        )

    def step_ticks(self) -> LinearExprT:
        """Return the ticks of the whole step: see `SkeletonChoice`."""
        fills = [
            self.amount(index, stage.fill)
            for index, stage in enumerate(self.choice.stages)
        ]
        return LinearExpr.sum([*fills, self.longest_pace, self.longest_sync])


def make_variables(model: CpModel, problem: Problem) -> list[SkeletonVars]:
    """Return the variables of every skeleton of a problem."""
    return [_of_skeleton(model, problem, choice) for choice in problem.skeletons]


def _of_skeleton(
    model: CpModel, problem: Problem, choice: SkeletonChoice
) -> SkeletonVars:
    stages = choice.stages
    return SkeletonVars(
        choice,
        model.new_bool_var(""),
        [model.new_int_var(0, stage.most_layers, "") for stage in stages],
        [model.new_int_var(0, stage.most_recomputed, "") for stage in stages],
        model.new_int_var(0, choice.most_in_each_chunk, ""),
        model.new_int_var(0, problem.horizon, ""),
        model.new_int_var(0, problem.horizon, ""),
    )
