"""The decision variables of one skeleton; all are 0 where it is not chosen."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.cpsat.ortools_import import CpModel, IntVar, LinearExpr, LinearExprT
from meshwright.cpsat.problem import Problem, SkeletonChoice


@dataclass(frozen=True)
class SkeletonVars:
    """Whether a skeleton is chosen, and how its layers are split."""

    choice: SkeletonChoice
    chosen: IntVar
    layers: list[IntVar]
    recomputed: list[IntVar]
    longest_pace: IntVar
    """Ticks that the slowest stage adds."""
    longest_sync: IntVar
    """Ticks of the longest end of the step."""

    def stage_ticks(self, stage: int) -> LinearExpr:
        """Return the ticks of a stage in filling the pipeline."""
        own = self.choice.stages[stage]
        return LinearExpr.weighted_sum(
            [self.layers[stage], self.recomputed[stage], self.chosen],
            [own.layer, own.recompute, own.extra],
        )

    def pace_ticks(self, stage: int) -> LinearExpr:
        """Return the ticks of a stage's pace."""
        own = self.choice.stages[stage]
        return LinearExpr.weighted_sum(
            [self.layers[stage], self.recomputed[stage], self.chosen],
            [own.pace_layer, own.pace_recompute, own.pace_extra],
        )

    def sync_ticks(self, stage: int) -> LinearExpr:
        """Return the ticks of a stage at the end of the step."""
        own = self.choice.stages[stage]
        return LinearExpr.weighted_sum(
            [self.layers[stage], self.chosen], [own.sync_layer, own.sync]
        )

    def step_ticks(self) -> LinearExprT:
        """Return the ticks of the whole step."""
        stages = [self.stage_ticks(stage) for stage in range(len(self.layers))]
        return LinearExpr.sum([*stages, self.longest_pace, self.longest_sync])


def make_variables(model: CpModel, problem: Problem) -> list[SkeletonVars]:
    """Return the variables of every skeleton."""
    return [_of_skeleton(model, problem, choice) for choice in problem.skeletons]


def _of_skeleton(
    model: CpModel, problem: Problem, choice: SkeletonChoice
) -> SkeletonVars:
    return SkeletonVars(
        choice,
        model.new_bool_var(""),
        [model.new_int_var(0, stage.most, "") for stage in choice.stages],
        [
            model.new_int_var(0, stage.most if stage.freed else 0, "")
            for stage in choice.stages
        ],
        model.new_int_var(0, problem.horizon, ""),
        model.new_int_var(0, problem.horizon, ""),
    )
