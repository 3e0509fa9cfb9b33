"""The pipeline: arrangements, lattice, bounds, proof, check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.profile import Profile
from meshwright.deadline import Deadline, OutOfTime
from meshwright.lattice.degrees import degree_rows, enumerate_degrees
from meshwright.plans.encoding import to_row
from meshwright.plans.techniques import name_of, techniques_of
from meshwright.results.outcome import KindResult, Outcome
from meshwright.results.training_run import RunReport
from meshwright.search.options import Options
from meshwright.solver.mixed_clusters import arrangements, best_of
from meshwright.solver.nearest_miss import nearest_legal
from meshwright.solver.prepared import Prepared, prepare
from meshwright.solver.proof import STOPPED, outcome_of
from meshwright.solver.relaxation import best_outcome
from meshwright.solver.safety import roomiest_gib, safety_choices
from meshwright.spec.spec import Spec

EFFORT_OF_TECHNIQUES = 0.25
"""Deterministic seconds for the best plan of a set of techniques.

Such plans are only compared with the best plan of all, and pipelines of very many
stages take minutes to prove.
"""


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
    options.on_progress("enumerating the lattice")
    if prepared is None:
        job = options.profile.job(spec)
        most_gib = roomiest_gib(spec) if options.is_safety else 0.0
        try:
            prepared = prepare(job, most_gib, deadline=deadline)
        except OutOfTime:
            return outcome_of(job, "unknown", left_open=STOPPED)
    outcome = _solve(prepared, options, deadline)
    return _with_safety(outcome, prepared, options, deadline)


def _run(spec: Spec, outcome: Outcome, profile: Profile) -> RunReport | None:
    """Return the training run with the best plan, where the spec has a run."""
    if outcome.best is None or not spec.run.model_fields_set:
        return None
    from meshwright.economics.training_run import run_report

    job = profile.job(spec.model_copy(update={"cluster": outcome.cluster}))
    return run_report(job, outcome.best)


def _best_arrangement(spec: Spec, options: Options, deadline: Deadline) -> Outcome:
    """Return the best outcome of all arrangements on unlike parts."""
    ways, found = list(arrangements(spec)), list[tuple[str, Outcome]]()
    # Arrangements are compared by the fastest plan of each.
    options = replace(options, tolerance=0.0, near=0.0)
    for arrangement in ways:
        options.on_progress(arrangement.sentence)
        try:
            job = options.profile.job(arrangement.spec)
            outcome = _solve(prepare(job, deadline=deadline), options, deadline)
        except OutOfTime:
            outcome = outcome_of(job, "unknown", left_open=STOPPED)
        except KeyboardInterrupt:
            if not (found and options.interrupt.is_asked):
                raise
            break
        found.append((arrangement.sentence, outcome))
        if deadline.has_passed:
            break
    return best_of(spec, found, is_whole=len(found) == len(ways))


def _solve(prepared: Prepared, options: Options, deadline: Deadline) -> Outcome:
    with options.interrupt.heeded():
        outcome = best_outcome(prepared, options, deadline)
        if not options.is_by_kind or outcome.best is None:
            return outcome
        brief = replace(options, top=1, is_brief=True, most_effort=EFFORT_OF_TECHNIQUES)
        kinds = tuple(
            _by_techniques(prepared.where_state_fits, brief, deadline, outcome)
        )
        return outcome.model_copy(update={"by_kind": kinds})


def _with_safety(
    outcome: Outcome, prepared: Prepared, options: Options, deadline: Deadline
) -> Outcome:
    """Return an outcome with what more or less safety would change, if wanted."""
    best = outcome.optimum
    if best is None or not options.is_safety:
        return outcome
    options.on_progress("comparing risks of running out of memory")
    choices = safety_choices(prepared.where_state_fits, options, deadline, best)
    return options.interrupt.unless_asked(
        lambda: outcome.model_copy(update={"safety": tuple(choices)}), outcome
    )


def _by_techniques(
    prepared: Prepared, options: Options, deadline: Deadline, whole: Outcome
) -> Iterator[KindResult]:
    """Yield the best plan of every set of techniques that the number of GPUs allows.

    The proven best plan of the `whole` lattice is also the best with its techniques.
    After an interrupt, the techniques not yet solved are left out.
    """
    job, lattice = prepared.job, prepared.lattice
    legal = techniques_of(degree_rows(lattice.degrees))
    known = set(legal[lattice.legal_degrees].tolist())
    degrees, _ = enumerate_degrees((int(np.prod(job.fabric.sizes)),))
    solved = _techniques_solved(job, whole)
    for techniques in np.unique(techniques_of(degree_rows(degrees))).tolist():
        if options.interrupt.is_asked:
            return
        if techniques == solved:
            best, miss, is_proven = whole.optimum, None, True
        elif techniques in known:
            part = prepared.among(legal == techniques)
            outcome = best_outcome(part, options, deadline)
            best, miss = outcome.best, outcome.near_miss
            is_proven = outcome.status != "feasible"
        else:
            best, miss, is_proven = None, nearest_legal(job, techniques), True
        name = name_of(techniques)
        yield KindResult(kind=name, best=best, near_miss=miss, is_proven=is_proven)


def _techniques_solved(job: Job, whole: Outcome) -> int | None:
    """Return the techniques of the best plan, if that is proven."""
    if whole.optimum is None or whole.status != "optimal":
        return None
    return int(techniques_of(to_row(job.fabric, whole.optimum.plan)[0])[0])
