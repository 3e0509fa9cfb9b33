"""Builds the model, proves the least step time, and makes the optimum unique.

Among plans of equal time the skeleton that stands first wins; among its splits, the
most even one, then the lexicographically first. Each is an objective of its own,
solved to proof with the ones before it held, so any number of workers agrees.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from meshwright.cpsat.ortools_import import (
    CpModel,
    CpSolver,
    LinearExpr,
    LinearExprT,
    cp_model,
)
from meshwright.cpsat.problem import Pairs, Problem, Proof
from meshwright.cpsat.rules import RULES
from meshwright.cpsat.solver import solved
from meshwright.cpsat.variables import SkeletonVars, make_variables
from meshwright.deadline import Deadline
from meshwright.errors import InternalError

_STATUS = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
    cp_model.UNKNOWN: "unknown",
}

LARGEST_OBJECTIVE = 2**60
"""Objectives stay below this, well inside CP-SAT's 64-bit sums."""


def prove(
    problem: Problem,
    deadline: Deadline,
    seed: int,
    workers: int,
    most_effort: float = inf,
) -> Proof:
    """Return the fastest plan of a problem, with the bound that was proven.

    `most_effort` is in CP-SAT's deterministic seconds. Which of several splits of
    equal time it has is left open: see `settled`.
    """
    model, every = build(problem)
    # One objective for time and preference: preference only decides between equals.
    weight = len(every)
    step = LinearExpr.sum([skeleton.step_ticks() for skeleton in every])
    preference = LinearExpr.weighted_sum(
        [skeleton.chosen for skeleton in every], list(range(weight))
    )
    model.minimize(weight * step + preference)
    solver = _solver(deadline, seed, workers)
    if most_effort < inf:
        solver.parameters.max_deterministic_time = most_effort
    status = _STATUS.get(solved(solver, model, deadline))
    if status is None:
        raise InternalError(f"CP-SAT refuses the model: {model.validate()}")
    bound = solver.best_objective_bound / weight
    if status == "infeasible":
        _confirm_infeasible(model, deadline, seed)
    if status not in ("optimal", "feasible"):
        return Proof(status, -1, (), 0, bound)
    index = next(i for i, own in enumerate(every) if solver.boolean_value(own.chosen))
    # The values of variables are exact; the objective comes as a float.
    ticks = solver.value(step)
    bound = float(ticks) if status == "optimal" else bound
    return Proof(status, index, _split(solver, every[index]), ticks, bound)


def _confirm_infeasible(model: CpModel, deadline: Deadline, seed: int) -> None:
    """Solve once more another way: wrong verdicts of infeasibility are on record.

    Raises:
        InternalError: without presolve and with another seed there is a plan.
    """
    solver = _solver(deadline, seed + 1, 1)
    solver.parameters.cp_model_presolve = False
    if solved(solver, model, deadline) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise InternalError("CP-SAT calls a model infeasible that has a solution")


def build(problem: Problem) -> tuple[CpModel, list[SkeletonVars]]:
    """Return the model of a problem, without objective, and its variables."""
    model = CpModel()
    every = make_variables(model, problem)
    for rule in RULES:
        rule(model, problem, every)
    if problem.hint is not None:
        index, split = problem.hint
        for skeleton in every[:index] + every[index + 1 :]:
            _hint_not_chosen(model, skeleton)
        _hint_split(model, every[index], split)
    return model, every


def _hint_split(model: CpModel, skeleton: SkeletonVars, split: Pairs) -> None:
    """Hint a split with all that follows from it: partial hints are of no use."""
    paces, syncs = [], []
    for e, (layers, recomputed) in enumerate(split):
        model.add_hint(skeleton.layers[e], layers)
        model.add_hint(skeleton.recomputed[e], recomputed)
        own = skeleton.choice.stages[e]
        pace = layers * own.pace_layer + recomputed * own.pace_recompute
        paces.append(pace + own.pace_extra)
        syncs.append(layers * own.sync_layer + own.sync)
    model.add_hint(skeleton.chosen, True)
    model.add_hint(skeleton.longest_pace, max(paces))
    model.add_hint(skeleton.longest_sync, max(syncs))


def _hint_not_chosen(model: CpModel, skeleton: SkeletonVars) -> None:
    model.add_hint(skeleton.chosen, False)
    for variable in (*skeleton.layers, *skeleton.recomputed):
        model.add_hint(variable, 0)
    model.add_hint(skeleton.longest_pace, 0)
    model.add_hint(skeleton.longest_sync, 0)


def settled(
    problem: Problem, proof: Proof, deadline: Deadline, seed: int, workers: int
) -> Proof:
    """Return a proof with the most even, then lexicographically first split.

    Only what is proven is settled, as long as `deadline` has not passed.
    """
    if proof.status != "optimal" or len(proof.split) == 1:
        return proof
    chosen = (problem.skeletons[proof.skeleton],)
    problem = replace(problem, skeletons=chosen, hint=(0, proof.split))
    model, (skeleton,) = build(problem)
    model.add(skeleton.step_ticks() <= proof.ticks)
    for objective in _tie_breaks(model, problem, skeleton):
        model.minimize(objective)
        solver = _solver(deadline, seed, workers)
        if solved(solver, model, deadline) != cp_model.OPTIMAL:
            break
        model.add(objective == solver.value(objective))
        proof = replace(proof, split=_split(solver, skeleton))
    return proof


def _tie_breaks(
    model: CpModel, problem: Problem, skeleton: SkeletonVars
) -> list[LinearExprT]:
    """Return objectives that leave one split: evenness, then stage after stage."""
    most = model.new_int_var(0, problem.layers, "")
    least = model.new_int_var(0, problem.layers, "")
    model.add_max_equality(most, skeleton.layers)
    model.add_min_equality(least, skeleton.layers)
    base = problem.layers + 1
    result: list[LinearExprT] = [base * most - least]
    digits = [*skeleton.layers, *skeleton.recomputed]
    per_objective = 1
    while base ** (per_objective + 1) < LARGEST_OBJECTIVE:
        per_objective += 1
    for start in range(0, len(digits), per_objective):
        part = digits[start : start + per_objective]
        weights = [base**power for power in reversed(range(len(part)))]
        result.append(LinearExpr.weighted_sum(part, weights))
    return result


def _split(solver: CpSolver, skeleton: SkeletonVars) -> Pairs:
    pairs = zip(skeleton.layers, skeleton.recomputed, strict=True)
    return tuple((solver.value(n), solver.value(r)) for n, r in pairs)


def _solver(deadline: Deadline, seed: int, workers: int) -> CpSolver:
    solver = CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = workers
    left_s = deadline.left_s
    if left_s < 1e6:
        solver.parameters.max_time_in_seconds = max(left_s, 0.001)
    return solver
