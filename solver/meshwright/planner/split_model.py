"""The split of the layers of one pipeline, for CP-SAT: where other constraints hold it.

Under a limit on links, or rules of the user on splits, a slower split may keep what a
faster one breaks. In the formulas stage e holds n_e layers, r_e of them recomputed.
`best_split` is faster where nothing but memory limits a split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter

from meshwright.cpsat.ortools import (
    CpModel,
    CpSolver,
    IntVar,
    LinearExpr,
    LinearExprT,
    cp_model,
    solve_until,
)
from meshwright.deadline import Deadline
from meshwright.errors import InternalError
from meshwright.planner.best_split import least_ticks_of_number
from meshwright.planner.linear_rules import require_rules
from meshwright.planner.pipeline import (
    LARGEST_OBJECTIVE,
    SHARE_UNIT,
    Pairs,
    Pipeline,
    Proof,
    StageAmount,
)

first, second = itemgetter(0), itemgetter(1)

_STATUS = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
    cp_model.UNKNOWN: "unknown",
}


@dataclass(frozen=True)
class Effort:
    """How CP-SAT solves, and for how long."""

    deadline: Deadline
    seed: int = 0
    workers: int = 1
    most: float = inf
    """Deterministic seconds of CP-SAT, equal on every machine."""

    def solver(self) -> CpSolver:
        """Return a solver that ends with the deadline."""
        solver = CpSolver()
        solver.parameters.random_seed = self.seed
        solver.parameters.num_workers = self.workers
        if self.deadline.left_s < 1e6:
            left_s = max(self.deadline.left_s, 0.001)
            solver.parameters.max_time_in_seconds = left_s
        return solver


@dataclass(frozen=True)
class SplitModel:
    """The model of one pipeline and its variables."""

    pipeline: Pipeline
    cp: CpModel
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
        """Return an amount of a stage as an expression."""
        return (
            amount.fixed
            + amount.per_layer * self.layers[stage]
            + amount.per_recomputed * self.recomputed[stage]
        )

    def step_ticks(self) -> LinearExprT:
        """Return the ticks of the whole step: see `Pipeline`."""
        stages = enumerate(self.pipeline.stages)
        fills = [self.amount(index, stage.fill) for index, stage in stages]
        return LinearExpr.sum([*fills, self.longest_pace, self.longest_sync])

    def split(self, solver: CpSolver) -> Pairs:
        """Return the split of a solution."""
        pairs = zip(self.layers, self.recomputed, strict=True)
        return tuple((solver.value(n), solver.value(r)) for n, r in pairs)


Constraint = Callable[[SplitModel], None]


def split_model(
    pipeline: Pipeline, constraints: Sequence[Constraint] | None = None
) -> SplitModel:
    """Return the model of a pipeline, without objective: all constraints, or some."""
    cp, stages = CpModel(), pipeline.stages
    model = SplitModel(
        pipeline,
        cp,
        [cp.new_int_var(0, stage.most_layers, "") for stage in stages],
        [cp.new_int_var(0, stage.most_recomputed, "") for stage in stages],
        cp.new_int_var(0, pipeline.most_in_each_chunk, ""),
        cp.new_int_var(0, pipeline.horizon, ""),
        cp.new_int_var(0, pipeline.horizon, ""),
    )
    for constraint in CONSTRAINTS if constraints is None else constraints:
        constraint(model)
    if pipeline.hint is not None:
        _hint(model, pipeline.hint)
    return model


def _hint(model: SplitModel, split: Pairs) -> None:
    """Hint a split with all that follows from it: partial hints are of no use."""
    pipeline, hint = model.pipeline, model.cp.add_hint
    for e, (layers, recomputed) in enumerate(split):
        hint(model.layers[e], layers)
        hint(model.recomputed[e], recomputed)
    filled = list(zip(pipeline.stages, split, strict=True))
    hint(model.in_each_chunk, pipeline.in_each_chunk(split))
    hint(model.longest_pace, max(0, *(stage.pace.of(*pair) for stage, pair in filled)))
    hint(model.longest_sync, max(0, *(stage.sync.of(*pair) for stage, pair in filled)))


def place_all_layers(model: SplitModel) -> None:
    """Ensure that the stages hold all layers of the model.

    sum of n_e over the stages = layers
    """
    model.cp.add(sum(model.layers) == model.pipeline.layers)


def fill_every_stage(model: SplitModel) -> None:
    """Ensure that every stage holds at least its fewest layers.

    n_e >= fewest_layers_e
    """
    for layers, stage in zip(model.layers, model.pipeline.stages, strict=True):
        model.cp.add(layers >= stage.fewest_layers)


def recompute_some_layer(model: SplitModel) -> None:
    """Ensure that a pipeline with recomputation recomputes at least one layer.

    sum of r_e over the stages >= 1
    """
    if model.pipeline.is_recomputing:
        model.cp.add(sum(model.recomputed) >= 1)


def recompute_held_layers(model: SplitModel) -> None:
    """Ensure that a stage recomputes no more layers than it holds.

    r_e <= n_e
    """
    for held, recomputed in zip(model.layers, model.recomputed, strict=True):
        model.cp.add(recomputed <= held)


def recompute_same_number(model: SplitModel) -> None:
    """Ensure that all chunks recompute the same number of layers, if they have it.

    r_e = min(v k, n_e) for one k >= 1, with v chunks on every stage. Since k >= 1,
    r_e >= min(v, fewest_layers_e), which the relaxation would not see.
    """
    chunks = model.pipeline.same_in_chunks
    if not chunks:
        return
    first = chunks * model.in_each_chunk
    for held, recomputed in zip(model.layers, model.recomputed, strict=True):
        model.cp.add_min_equality(recomputed, [first, held])
    if model.pipeline.is_recomputing:
        for e, stage in enumerate(model.pipeline.stages):
            fewest = min(chunks, stage.fewest_layers)
            model.cp.add(model.recomputed[e] >= fewest)


def fix_number(model: SplitModel, number: int) -> None:
    """Fix the number of layers that every chunk recomputes.

    min(v k, n) is concave in n, and so no less than its chord over the layers that a
    stage may hold: the relaxation is tight where it bends at one end of them.
    """
    first = number * model.pipeline.same_in_chunks
    model.cp.add(model.in_each_chunk == number)
    for e, stage in enumerate(model.pipeline.stages):
        least, most = stage.fewest_layers, stage.most_layers
        at_least, at_most = min(first, least), min(first, most)
        model.cp.add(
            (most - least) * (model.recomputed[e] - at_least)
            >= (at_most - at_least) * (model.layers[e] - least)
        )


def fit_memory(model: SplitModel) -> None:
    """Ensure that the layers of every stage fit in the memory left for them.

    memory_e(n_e, r_e) <= capacity_e
    """
    for e, stage in enumerate(model.pipeline.stages):
        model.cp.add(model.amount(e, stage.memory) <= stage.capacity)


def time_slowest_stage(model: SplitModel) -> None:
    """Ensure that the step waits for the slowest stage.

    longest_pace = max over e of pace_e(n_e, r_e), at least 0
    """
    stages = enumerate(model.pipeline.stages)
    paces = [model.amount(e, stage.pace) for e, stage in stages]
    _bound_by(model, model.longest_pace, paces)


def time_longest_sync(model: SplitModel) -> None:
    """Ensure that the step waits for the stage that finishes last.

    longest_sync = max over e of sync_e(n_e), at least 0
    """
    stages = enumerate(model.pipeline.stages)
    syncs = [model.amount(e, stage.sync) for e, stage in stages]
    _bound_by(model, model.longest_sync, syncs)


def _bound_by(model: SplitModel, longest: IntVar, ticks: Sequence[LinearExpr]) -> None:
    """Ensure that a variable is the maximum of expressions, and of 0.

    As the step is minimised `>=` says as much, and costs less. Under a limit on links
    it does not: there a slower step would be a way to keep the limit.
    """
    if model.pipeline.link_share is not None:
        model.cp.add_max_equality(longest, [0, *ticks])
        return
    for lower in ticks:
        model.cp.add(longest >= lower)


def limit_link_use(model: SplitModel) -> None:
    """Ensure that no link is busy for more than its share of the step.

    busy_l(n_e, r_e) <= link_share * step, for every link l of every stage e
    """
    if model.pipeline.link_share is None:
        return
    share, step = int(model.pipeline.link_share * SHARE_UNIT), model.step_ticks()
    for e, stage in enumerate(model.pipeline.stages):
        for busy in stage.links:
            model.cp.add(SHARE_UNIT * model.amount(e, busy) <= share * step)


def keep_pinned_layers(model: SplitModel) -> None:
    """Ensure that stages hold the layers that the user pinned.

    n_e = pinned_layers_e
    """
    _pin(model, model.layers, model.pipeline.pinned_layers)


def keep_pinned_recompute(model: SplitModel) -> None:
    """Ensure that stages recompute the layers that the user pinned.

    r_e = pinned_recompute_e, and n_e instead where every layer is recomputed
    """
    pipeline = model.pipeline
    variables = model.layers if pipeline.recomputes_all else model.recomputed
    _pin(model, variables, pipeline.pinned_recompute)


def _pin(
    model: SplitModel, variables: Sequence[IntVar], pinned: tuple[int, ...] | None
) -> None:
    for variable, value in zip(variables, pinned or (), strict=pinned is not None):
        model.cp.add(variable == value)


def recompute_every_layer(model: SplitModel) -> None:
    """Ensure that all layers are recomputed, where not some alone may be.

    r_e = n_e
    """
    pipeline = model.pipeline
    if not (pipeline.recomputes_every_layer and pipeline.is_recomputing):
        return
    for held, recomputed in zip(model.layers, model.recomputed, strict=True):
        model.cp.add(recomputed == held)


def avoid_forbidden_splits(model: SplitModel) -> None:
    """Ensure that no split is one that was found to break a rule.

    (n, r) differs from each of them in some stage
    """
    if model.pipeline.forbidden:
        model.cp.add_forbidden_assignments(
            [*model.layers, *model.recomputed],
            [(*map(first, s), *map(second, s)) for s in model.pipeline.forbidden],
        )


def keep_user_rules(model: SplitModel) -> None:
    """Ensure that splits keep the rules of the user, as far as these are linear."""
    if model.pipeline.clauses:
        require_rules(
            model.cp, model.pipeline, model.layers, model.recomputed, model.amount
        )


CONSTRAINTS: tuple[Constraint, ...] = (
    place_all_layers,
    fill_every_stage,
    recompute_some_layer,
    recompute_held_layers,
    recompute_same_number,
    fit_memory,
    time_slowest_stage,
    time_longest_sync,
    limit_link_use,
    keep_pinned_layers,
    keep_pinned_recompute,
    recompute_every_layer,
    avoid_forbidden_splits,
    keep_user_rules,
)
"""Constraints of the model, in the order in which they are added."""


def prove(pipeline: Pipeline, effort: Effort, below: int | None = None) -> Proof:
    """Return the best split of a pipeline that takes less than `below` ticks.

    Where several splits take equally long any of them may come back: see
    `with_unique_split`.
    """
    if pipeline.same_in_chunks:
        return _prove_by_number(pipeline, effort, below)
    return _prove(pipeline, effort, below)


def _prove_by_number(pipeline: Pipeline, effort: Effort, most: int | None) -> Proof:
    """Return the proof of a pipeline whose chunks recompute the same number of layers.

    Each number is proven alone. With it fixed, the recomputed layers of a stage follow
    from its layers; with it open, the relaxation is weak, and many stages take minutes.
    A number whose bound is no better than the best so far needs no proof.
    """
    best, open_bound = None, inf
    for number in pipeline.chunk_numbers:
        below = best.ticks if best else most
        least = least_ticks_of_number(pipeline, number)
        if least >= (inf if below is None else below):
            continue
        proof = _prove(pipeline, effort, below, number)
        if proof.has_plan:
            best = proof
        if proof.is_open:
            open_bound = min(open_bound, proof.bound)
    if best is None:
        # With the number open, a verdict that there is no plan is confirmed.
        return _prove(pipeline, effort, most)
    is_proven = open_bound >= best.ticks
    return replace(
        best,
        status="optimal" if is_proven else "feasible",
        bound=min(open_bound, float(best.ticks)),
    )


def _prove(
    pipeline: Pipeline, effort: Effort, below: int | None, number: int | None = None
) -> Proof:
    """Return the proof of one model; `number` fixes the recomputed layers of chunks."""
    model = split_model(pipeline)
    if number is not None:
        fix_number(model, number)
    step = model.step_ticks()
    if below is not None:
        model.cp.add(step < below)
    model.cp.minimize(step)
    solver = effort.solver()
    if effort.most < inf:
        solver.parameters.max_deterministic_time = effort.most
    status = _STATUS.get(solve_until(effort.deadline, solver, model.cp))
    if status is None:
        raise InternalError(f"CP-SAT refuses the model: {model.cp.validate()}")
    bound = solver.best_objective_bound
    if status == "infeasible" and number is None:
        _confirm_infeasible(model.cp, effort)
    if status not in ("optimal", "feasible"):
        return Proof(status, (), 0, bound)
    # The values of variables are exact; the objective comes as a float.
    ticks = solver.value(step)
    bound = float(ticks) if status == "optimal" else bound
    return Proof(status, model.split(solver), ticks, bound)


def _confirm_infeasible(model: CpModel, effort: Effort) -> None:
    """Solve once more another way: wrong verdicts of infeasibility are on record.

    Raises:
        InternalError: without presolve and with another seed there is a plan.
    """
    solver = replace(effort, seed=effort.seed + 1, workers=1).solver()
    solver.parameters.cp_model_presolve = False
    status = solve_until(effort.deadline, solver, model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise InternalError("CP-SAT calls a model infeasible that has a solution")


def with_unique_split(pipeline: Pipeline, proof: Proof, effort: Effort) -> Proof:
    """Return a proof with the most even, then lexicographically first split.

    A proof that is not optimal is returned as it is, and so is the best split so far
    once the deadline has passed. Each objective is solved to proof while the earlier
    ones are held, so that any number of workers finds the same split.
    """
    if proof.status != "optimal" or len(proof.split) == 1:
        return proof
    model = split_model(replace(pipeline, hint=proof.split))
    model.cp.add(model.step_ticks() <= proof.ticks)
    for objective in _tie_breaks(model):
        model.cp.minimize(objective)
        solver = effort.solver()
        if solve_until(effort.deadline, solver, model.cp) != cp_model.OPTIMAL:
            break
        model.cp.add(objective == solver.value(objective))
        proof = replace(proof, split=model.split(solver))
    return proof


def _tie_breaks(model: SplitModel) -> list[LinearExprT]:
    """Return objectives that leave one split: evenness, then stage after stage.

    Splits are compared as numbers: layers and recomputed layers of the stages are
    their digits, in base layers + 1, cut into objectives below `LARGEST_OBJECTIVE`.
    """
    cp, layers = model.cp, model.pipeline.layers
    most, least = (cp.new_int_var(0, layers, "") for _ in range(2))
    cp.add_max_equality(most, model.layers)
    cp.add_min_equality(least, model.layers)
    base = layers + 1
    result: list[LinearExprT] = [base * most - least]
    digits = [*model.layers, *model.recomputed]
    per_objective = 1
    while base ** (per_objective + 1) < LARGEST_OBJECTIVE:
        per_objective += 1
    for start in range(0, len(digits), per_objective):
        part = digits[start : start + per_objective]
        weights = [base**power for power in reversed(range(len(part)))]
        result.append(LinearExpr.weighted_sum(part, weights))
    return result
