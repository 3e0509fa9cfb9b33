"""The pipeline: arrangements, lattice, bounds, proof, check."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.arrangements import arrangements, best_of
from meshwright.degrees import degree_rows, enumerate_degrees
from meshwright.economics.run import run_report
from meshwright.job import Job
from meshwright.kinds import kind_name, kind_of
from meshwright.lattice import Lattice, build_lattice
from meshwright.nearest import nearest_legal
from meshwright.options import Options
from meshwright.plan import (
    KindResult,
    Outcome,
)
from meshwright.profile import Profile
from meshwright.run import Run
from meshwright.spec.spec import Spec

EFFORT_OF_KINDS = 0.25
"""Deterministic seconds for the best plan of a kind: that is no answer, but tells how
far it is from the one that is. Pipelines of very many stages take minutes to prove."""


def solve(spec: Spec, options: Options | None = None) -> Outcome:
    """Return the fastest plan of a spec with its certificate, or why there is none.

    Raises:
        SpecError: steps take days, so that their times do not fit the solver.
        InternalError: the checker disagrees with the solver about a plan.
    """
    options = options or Options()
    deadline = time.monotonic() + options.time_limit_s
    if spec.cluster.parts:
        outcome = _best_arrangement(spec, options, deadline)
    else:
        outcome = _solve(options.profile.job(spec), options, deadline)
    return _with_run(spec, outcome, options.profile)


def _with_run(spec: Spec, outcome: Outcome, profile: Profile) -> Outcome:
    """Return an outcome with the run around its best plan, where the spec has one."""
    if outcome.best is None or not spec.run.model_fields_set:
        return outcome
    job = profile.job(spec.model_copy(update={"cluster": outcome.cluster}))
    return outcome.model_copy(update={"run": run_report(job, outcome.best)})


def _best_arrangement(spec: Spec, options: Options, deadline: float) -> Outcome:
    """Return the best of all ways to lay a job over unlike parts."""
    found = []
    for own in arrangements(spec):
        options.on_progress(own.sentence)
        job = options.profile.job(own.spec)
        found.append((own.sentence, _solve(job, options, deadline)))
    return best_of(found)


def _solve(job: Job, options: Options, deadline: float) -> Outcome:
    options.on_progress("enumerating the lattice")
    lattice = build_lattice(job)
    outcome = Run(job, lattice, options, deadline).outcome()
    if not options.is_by_kind or outcome.best is None:
        return outcome
    each = replace(options, top=1, is_brief=True, most_effort=EFFORT_OF_KINDS)
    kinds = tuple(_by_kind(job, lattice, each, deadline))
    return outcome.model_copy(update={"by_kind": kinds})


def _by_kind(
    job: Job, lattice: Lattice, options: Options, deadline: float
) -> Iterator[KindResult]:
    """Yield the best plan of every kind that the cluster has room for."""
    degrees, _ = enumerate_degrees((int(np.prod(job.fabric.sizes)),))
    legal = kind_of(lattice.rows)
    for kind in np.unique(kind_of(degree_rows(degrees))).tolist():
        if kind in legal:
            own = lattice.take(np.flatnonzero(legal == kind))
            outcome = Run(job, own, options, deadline).outcome()
            best, miss = outcome.best, outcome.near_miss
            is_proven = outcome.status != "feasible"
        else:
            best, miss, is_proven = None, nearest_legal(job, kind), True
        name = kind_name(kind)
        yield KindResult(kind=name, best=best, near_miss=miss, is_proven=is_proven)
