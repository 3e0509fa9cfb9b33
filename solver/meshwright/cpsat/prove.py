"""Proves the least step time of a problem, and makes its optimum unique.

Among plans of equal time the first skeleton wins; among its splits the most even one,
then the lexicographically first. Each of these is an objective that is solved to proof
while the earlier ones are held, so any number of workers finds the same plan.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from meshwright.cpsat.constraints import fix_number
from meshwright.cpsat.interruptible import solve_until
from meshwright.cpsat.model import build
from meshwright.cpsat.number_bound import least_ticks
from meshwright.cpsat.ortools_import import (
    CpModel,
    CpSolver,
    LinearExpr,
    LinearExprT,
    cp_model,
)
from meshwright.cpsat.problem import Pairs, Problem, Proof
from meshwright.cpsat.variables import SkeletonVars
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

    `most_effort` is in CP-SAT's deterministic seconds. Where several splits take
    equally long any of them may come back: see `with_unique_split`.
    """
    if len(problem.skeletons) > 1 or not problem.skeletons[0].same_in_chunks:
        return _prove(problem, deadline, seed, workers, most_effort)
    return _prove_by_number(problem, deadline, seed, workers, most_effort)


def _prove_by_number(
    problem: Problem, deadline: Deadline, seed: int, workers: int, most_effort: float
) -> Proof:
    """Return the proof of a skeleton whose chunks recompute the same number of layers.

    Each number is proven alone. With it fixed, the recomputed layers of a stage follow
    from its layers; with it open, the relaxation is weak, and many stages take minutes.
    A number whose bound is no better than the best so far needs no proof.
    """
    choice, best, open_bound = problem.skeletons[0], None, inf
    fewest = 1 if choice.is_recomputing else 0
    if choice.is_recomputing and problem.recomputes_every_layer:
        fewest = choice.most_in_each_chunk
    for number in range(fewest, choice.most_in_each_chunk + 1):
        below = best.ticks if best else None
        least = least_ticks(choice, problem.layers, number)
        if least >= (inf if below is None else below):
            continue
        proof = _prove(
            problem, deadline, seed, workers, most_effort, number=number, below=below
        )
        if proof.status in ("optimal", "feasible"):
            best = proof
        if proof.status in ("feasible", "unknown"):
            open_bound = min(open_bound, proof.bound)
    if best is None:
        # With the number open, a verdict that there is no plan is confirmed.
        return _prove(problem, deadline, seed, workers, most_effort)
    is_proven = open_bound >= best.ticks
    return replace(
        best,
        status="optimal" if is_proven else "feasible",
        bound=min(open_bound, float(best.ticks)),
    )


def _prove(
    problem: Problem,
    deadline: Deadline,
    seed: int,
    workers: int,
    most_effort: float,
    *,
    number: int | None = None,
    below: int | None = None,
) -> Proof:
    """Return the proof of one model.

    `number` fixes the recomputed layers of every chunk, and plans take less than
    `below` ticks.
    """
    model, skeletons = build(problem)
    if number is not None:
        fix_number(model, skeletons[0], number)
    # One objective for time and preference: preference only decides between equals.
    weight = len(skeletons)
    step = LinearExpr.sum([skeleton.step_ticks() for skeleton in skeletons])
    preference = LinearExpr.weighted_sum(
        [skeleton.chosen for skeleton in skeletons], list(range(weight))
    )
    if below is not None:
        model.add(step < below)
    model.minimize(weight * step + preference)
    solver = _solver(deadline, seed, workers)
    if most_effort < inf:
        solver.parameters.max_deterministic_time = most_effort
    status = _STATUS.get(solve_until(deadline, solver, model))
    if status is None:
        raise InternalError(f"CP-SAT refuses the model: {model.validate()}")
    bound = solver.best_objective_bound / weight
    if status == "infeasible" and number is None:
        _confirm_infeasible(model, deadline, seed)
    if status not in ("optimal", "feasible"):
        return Proof(status, -1, (), 0, bound)
    index = next(
        index
        for index, skeleton in enumerate(skeletons)
        if solver.boolean_value(skeleton.chosen)
    )
    # The values of variables are exact; the objective comes as a float.
    ticks = solver.value(step)
    bound = float(ticks) if status == "optimal" else bound
    return Proof(status, index, _split(solver, skeletons[index]), ticks, bound)


def _confirm_infeasible(model: CpModel, deadline: Deadline, seed: int) -> None:
    """Solve once more another way: wrong verdicts of infeasibility are on record.

    Raises:
        InternalError: without presolve and with another seed there is a plan.
    """
    solver = _solver(deadline, seed + 1, 1)
    solver.parameters.cp_model_presolve = False
    if solve_until(deadline, solver, model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise InternalError("CP-SAT calls a model infeasible that has a solution")


def with_unique_split(
    problem: Problem, proof: Proof, deadline: Deadline, seed: int, workers: int
) -> Proof:
    """Return a proof with the most even, then lexicographically first split.

    A proof that is not optimal is returned as it is, and so is the best split so far
    once `deadline` has passed.
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
        if solve_until(deadline, solver, model) != cp_model.OPTIMAL:
            break
        model.add(objective == solver.value(objective))
        proof = replace(proof, split=_split(solver, skeleton))
    return proof


def _tie_breaks(
    model: CpModel, problem: Problem, skeleton: SkeletonVars
) -> list[LinearExprT]:
    """Return objectives that leave one split: evenness, then stage after stage.

    Splits are compared as numbers: layers and recomputed layers of the stages are
    their digits, in base layers + 1, cut into objectives below `LARGEST_OBJECTIVE`.
    """
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
