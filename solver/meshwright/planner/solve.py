"""Solves a spec: rows, bounds, one model, a proof, a check.

Where the GPU order of a host is a choice, a limit on links is first left out: orders
are searched in which some group of ranks pays less than in others, which proves the
problem without the limit. If its best plan keeps the limit, that is the best plan under
the limit too; if not, its step time is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from meshwright.check.check import broken_rules
from meshwright.cost.job import Job
from meshwright.cost.profile import Profile
from meshwright.deadline import Deadline, Interrupt, OutOfTime
from meshwright.errors import SpecError
from meshwright.planner.answer import STOPPED, LatticeProof, outcome_of
from meshwright.planner.degrees import MeshTable, degree_rows, enumerate_degrees
from meshwright.planner.families import Prepared, prepare
from meshwright.planner.integer_costs import ticks_down
from meshwright.planner.mixed_clusters import arrangements, best_of
from meshwright.planner.nearest_miss import nearest_legal, nearest_miss
from meshwright.planner.options import Options
from meshwright.planner.parts import (
    KIND,
    Part,
    PartPlan,
    can_be_searched,
    degrees_of,
    search_parts,
    values_of,
)
from meshwright.planner.rows import Lattice
from meshwright.plans.plan import Plan
from meshwright.plans.simplicity import name_of, techniques_of
from meshwright.plans.skeletons import to_row
from meshwright.results.outcome import KindResult, Outcome, SafetyChoice
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.training_run import RunReport
from meshwright.spec.spec import Spec, with_risk

RISKS = (0.01, 0.05, 0.2)
"""Risks that are compared: the safest and the boldest that were not asked for."""

EFFORT = 0.5
"""Deterministic seconds of CP-SAT for the best plan at another risk."""

EFFORT_OF_TECHNIQUES = 0.25
"""Deterministic seconds for the best plan of a set of techniques.

These plans are only compared with the best plan of all, and pipelines of very many
stages take minutes to prove.
"""

MEMORY = "memory"
"""The rule that a run out of memory breaks."""


def solve(
    spec: Spec, options: Options | None = None, prepared: Prepared | None = None
) -> Outcome:
    """Return the fastest plan of a spec with its certificate, or why there is none.

    `prepared` is the prepared job of the spec, if it exists already.

    Raises:
        SpecError: steps take days, so that their times do not fit the solver.
        InternalError: the checker disagrees with the solver about a plan.
    """
    options = options or Options()
    spec = options.profile.applied_to(spec)
    deadline = Deadline(options.time_limit_s, options.interrupt)
    if spec.cluster.parts:
        outcome = _best_arrangement(spec, options, deadline)
    else:
        outcome = _on_one_kind(spec, options, deadline, prepared)
    # An interrupt has done its work: the outcome found so far is returned.
    options.interrupt.is_heeded = True
    return outcome.model_copy(
        update={
            "title": spec.title,
            "is_stopped": deadline.has_passed,
            "run": _run(spec, outcome, options.profile),
        }
    )


def _on_one_kind(
    spec: Spec, options: Options, deadline: Deadline, prepared: Prepared | None
) -> Outcome:
    """Return the outcome of a spec whose GPUs are all alike."""
    options.on_progress("listing the legal plans")
    if prepared is None:
        job = options.profile.job(spec)
        most_gib = roomiest_gib(spec) if options.is_safety else 0.0
        try:
            prepared = prepare(job, most_gib, deadline=deadline)
        except OutOfTime:
            return outcome_of(job, "unknown", left_open=STOPPED)
    outcome = _solve(prepared, options, deadline)
    return _with_safety(outcome, prepared, options, deadline)


def _solve(prepared: Prepared, options: Options, deadline: Deadline) -> Outcome:
    with options.interrupt.heeded():
        outcome = best_outcome(prepared, options, deadline)
        if not options.is_by_kind or outcome.best is None:
            return outcome
        found = best_of_parts(
            prepared,
            kinds_in(prepared.lattice),
            options,
            deadline,
            outcome,
            options.kinds_within,
        )
        kinds = tuple(told_kinds(prepared, found, options.interrupt))
        return outcome.model_copy(update={"by_kind": kinds})


def best_outcome(prepared: Prepared, options: Options, deadline: Deadline) -> Outcome:
    """Return the best plans of a lattice with their certificate, or why none is.

    Raises:
        SpecError: steps take days.
        InternalError: the checker disagrees with the solver about a plan.
    """
    job, lattice = prepared.job, prepared.lattice
    proof = LatticeProof(job, lattice, options, deadline, prepared.families)
    if job.spec.limits.max_link_utilisation is None or not lattice.table.has_choice:
        return proof.outcome()
    relaxed_job = _without_limit(job)
    relaxed = replace(
        proof,
        job=relaxed_job,
        lattice=replace(lattice, table=MeshTable(relaxed_job)),
    ).outcome()
    if relaxed.status == "infeasible":
        return relaxed
    if relaxed.best and not options.near:
        plans = (relaxed.best.plan, *(other.plan for other in relaxed.others))
        if relaxed.fastest:
            plans = (*plans, relaxed.fastest.plan)
        if all(_keeps(job, plan) for plan in plans):
            return _within_limit(job, relaxed)
    bound = ticks_down(relaxed.certificate.bound_s) if relaxed.certificate else 0.0
    return replace(proof, known_bound=bound).outcome()


def _without_limit(job: Job) -> Job:
    kinds = tuple(map(_without_limit, job.gpu_kinds))
    spec = job.spec.having("limits", max_link_utilisation=None)
    return replace(job, spec=spec, gpu_kinds=kinds)


def _keeps(job: Job, plan: Plan) -> bool:
    return not broken_rules(job, plan)


def _within_limit(job: Job, outcome: Outcome) -> Outcome:
    """Return an outcome without a rival or runner-up that breaks the limit."""
    others = {"rival": outcome.rival, "runner_up": outcome.runner_up}
    broken = {
        name: None
        for name, other in others.items()
        if other and not _keeps(job, other.plan)
    }
    return outcome.model_copy(update=broken)


def _best_arrangement(spec: Spec, options: Options, deadline: Deadline) -> Outcome:
    """Return the best outcome of all arrangements on unlike parts.

    They are compared by the fastest plan of each, or by that of the least doubted step
    where plans are recommended by it. The best is then solved as if it were the spec.
    """
    ways, found, stopped = list(arrangements(spec)), list[Outcome](), list[Outcome]()
    options, compared = replace(options, near=0.0), comparing(options)
    for arrangement in ways:
        options.on_progress(arrangement.sentence)
        job = options.profile.job(arrangement.spec)
        try:
            prepared = prepare(job, deadline=deadline)
            with options.interrupt.heeded():
                outcome = best_outcome(prepared, compared, deadline)
            stopped.append(without_answer(outcome, prepared.least_s))
        except OutOfTime:
            outcome = outcome_of(job, "unknown", left_open=STOPPED)
            stopped.append(outcome)
        except KeyboardInterrupt:
            if not (found and options.interrupt.is_asked):
                raise
            break
        found.append(outcome)
        if options.interrupt.is_asked:
            break

    def answered(chosen: int) -> Outcome:
        """Return the whole outcome of an arrangement, or as much as time allows."""
        if deadline.has_passed:
            return stopped[chosen]
        try:
            job = options.profile.job(ways[chosen].spec)
            whole = _solve(prepare(job, deadline=deadline), options, deadline)
        except OutOfTime:
            return stopped[chosen]
        return whole if whole.best else stopped[chosen]

    return best_of(spec, ways, found, answered)


def comparing(options: Options) -> Options:
    """Return the options with which choices are solved that are then compared.

    Where a spec of one choice would be answered with the plan that is recommended by
    its doubted step, each choice has the plan of the least one.
    """
    return replace(
        options,
        top=1,
        tolerance=0.0,
        near=0.0,
        is_brief=True,
        is_doubted=options.is_by_doubt,
    )


def without_answer(outcome: Outcome, least_s: float) -> Outcome:
    """Return the outcome of a choice, found to be compared, as that of a stopped solve.

    Where its bound is on doubted steps, `least_s` is one on steps.
    """
    best, proof = outcome.best, outcome.certificate
    if best is None or proof is None or not proof.is_of_doubted:
        return outcome
    bound_s = min(least_s, best.step_s)
    told: dict[str, object] = {
        "bound_s": bound_s,
        "gap": 1 - bound_s / best.step_s,
        "left_open": STOPPED,
    }
    told |= {"is_of_doubted": False, "is_simplest": False}
    proof = proof.model_copy(update=told)
    return outcome.model_copy(update={"status": "feasible", "certificate": proof})


def best_of_parts(
    prepared: Prepared,
    parts: Sequence[Part],
    options: Options,
    deadline: Deadline,
    whole: Outcome,
    within: float = inf,
) -> dict[Part, PartPlan]:
    """Return the best plan of each part of a lattice whose best plans are known.

    It is proven if it takes at most a share `within` more than the fastest plan of all,
    or than the recommended one where doubted steps are compared. Of the others a plan
    is constructed, and a bound says how much they lose at least. After an interrupt,
    parts of which no plan is known are left out.
    """
    fastest, recommended = whole.optimum, whole.best
    assert fastest
    assert recommended
    row = to_row(prepared.job.fabric, fastest.plan)[0]
    found = {
        part: PartPlan(fastest, fastest.step_s, is_proven=True)
        for part in parts
        if whole.status == "optimal"
        and not part.is_doubted
        and values_of(row, part.column)[0] == part.value
    }
    left = [part for part in parts if part not in found]
    brief = replace(
        options, top=1, near=0.0, is_brief=True, most_effort=EFFORT_OF_TECHNIQUES
    )
    if left and can_be_searched(prepared):
        most_s = [
            (1 + within) * part.takes_s(recommended if part.is_doubted else fastest)
            for part in left
        ]
        plans = search_parts(prepared, left, most_s, brief, deadline)
        pairs = zip(left, plans, strict=True)
        found |= {part: plan for part, plan in pairs if plan.best or plan.is_proven}
    for part in left:
        if options.interrupt.is_asked:
            break
        if part not in found:
            alone = prepared.among(degrees_of(prepared.lattice, part))
            found[part] = part_plan(part, best_outcome(alone, brief, deadline))
    return found


def part_plan(part: Part, outcome: Outcome) -> PartPlan:
    """Return the outcome of a part that was solved alone, by its step."""
    bound_s = outcome.certificate.bound_s if outcome.certificate else 0.0
    is_proven, best = outcome.status in ("optimal", "infeasible"), outcome.best
    # Of a plan that is doubted, another may take longer and be doubted less.
    is_proven &= best is None or part.takes_s(best) == best.step_s
    return PartPlan(best, bound_s, is_proven, outcome.near_miss)


def kinds_in(lattice: Lattice) -> list[Part]:
    """Return the sets of techniques of the skeletons of a lattice, as its parts."""
    kinds = techniques_of(degree_rows(lattice.degrees[lattice.legal_degrees]))
    return [Part(KIND, kind) for kind in np.unique(kinds).tolist()]


def told_kinds(
    prepared: Prepared, found: Mapping[Part, PartPlan], interrupt: Interrupt
) -> Iterator[KindResult]:
    """Yield the best plan of every set of techniques that the number of GPUs allows.

    After an interrupt, the sets that were not looked at are left out.
    """
    job, lattice = prepared.job, prepared.lattice
    degrees, _ = enumerate_degrees((int(np.prod(job.fabric.sizes)),))
    legal = kinds_in(lattice)
    for kind in np.unique(techniques_of(degree_rows(degrees))).tolist():
        part, name = Part(KIND, kind), name_of(kind)
        if interrupt.is_asked and part not in found:
            continue
        if part not in legal:
            yield KindResult(kind=name, near_miss=nearest_legal(job, kind))
            continue
        plan = found[part]
        miss = plan.near_miss
        if plan.best is None and plan.is_proven and miss is None:
            miss = nearest_miss(job, lattice.among(degrees_of(lattice, part)))
        is_bounded = plan.best is not None and not plan.is_proven
        yield KindResult(
            kind=name,
            best=plan.best,
            is_proven=plan.is_proven,
            bound_s=plan.bound_s if is_bounded else None,
            near_miss=miss,
        )


def _with_safety(
    outcome: Outcome, prepared: Prepared, options: Options, deadline: Deadline
) -> Outcome:
    """Return an outcome with the plans to run at other risks, if asked for."""
    best = outcome.best
    if best is None or not options.is_safety:
        return outcome
    options.on_progress("comparing risks of running out of memory")
    choices = safety_choices(prepared, options, deadline, best)
    return options.interrupt.unless_asked(
        lambda: outcome.model_copy(update={"safety": tuple(choices)}), outcome
    )


def safety_choices(
    prepared: Prepared, options: Options, deadline: Deadline, best: PricedPlan
) -> Iterator[SafetyChoice]:
    """Yield the plan to run at two other risks; `best` is that at the risk asked for.

    If the user limits memory itself, there is no risk to choose. No bound of the
    lattice depends on memory, so the prepared lattice serves every risk. The best plan
    also fits at a higher risk, so plans that take longer are not looked at there.
    """
    limits = prepared.job.spec.limits
    if not limits.is_by_risk:
        return
    risks = [risk for risk in RISKS if risk != limits.risk]
    is_doubted = options.is_by_doubt
    brief = replace(
        options, top=1, is_brief=True, most_effort=EFFORT, is_doubted=is_doubted
    )
    takes_s = best.takes_s(is_doubted=is_doubted)
    for risk in (risks[0], risks[-1]):
        if options.interrupt.is_asked or deadline.has_passed:
            return
        is_bolder = risk > limits.risk
        if not is_bolder and best.fit_probability >= 1 - risk:
            yield SafetyChoice(oom_risk=risk, step_s=best.step_s, plan=best.plan)
            continue
        known_s = (1 + options.tolerance) * takes_s if is_bolder else inf
        other = prepared.at_risk(risk)
        outcome = best_outcome(other, replace(brief, known_s=known_s), deadline)
        yield _choice(risk, outcome, best if is_bolder else None)


def _choice(risk: float, outcome: Outcome, known: PricedPlan | None) -> SafetyChoice:
    """Return the best plan at a risk: a plan known to fit, where none is faster."""
    found = outcome.best
    if known is not None and (found is None or found.step_s >= known.step_s):
        found = known
    return SafetyChoice(
        oom_risk=risk,
        step_s=found.step_s if found else None,
        plan=found.plan if found else None,
        is_proven=outcome.status in ("optimal", "infeasible"),
    )


def roomiest_gib(spec: Spec) -> float:
    """Return the most memory that a plan may use at any risk that is compared, GiB."""
    if not spec.limits.is_by_risk:
        return spec.usable_gib
    return max(spec.usable_gib, with_risk(spec, RISKS[-1]).usable_gib)


def _run(spec: Spec, outcome: Outcome, profile: Profile) -> RunReport | None:
    """Return the training run with the best plan, where the spec has a run."""
    if outcome.best is None or not spec.run.model_fields_set:
        return None
    from meshwright.economics.training_run import run_report

    job = profile.job(spec.model_copy(update={"cluster": outcome.cluster}))
    return run_report(job, outcome.best)


def asked_plan(spec: Spec, options: Options) -> Plan:
    """Return the plan that the pins of a spec ask for, whether or not it fits.

    Open fields are chosen by the solver: the fastest plan, or the plan that needs the
    least memory if none fits.

    Raises:
        SpecError: no legal plan has the pins; names the rule that the nearest breaks.
    """
    outcome = solve(spec, options)
    if outcome.best is not None:
        return outcome.best.plan
    miss = outcome.near_miss
    broken = [rule for rule in miss.broken_rules if rule.rule != MEMORY] if miss else []
    if broken or miss is None or miss.plan is None:
        told = f"{broken[0].rule}: {broken[0].sentence}" if broken else "none is legal"
        raise SpecError(f"plan: {told}")
    return miss.plan
