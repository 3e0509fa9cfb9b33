"""Answers that tests of words, formats, pages and exports share within a process.

They ask in many ways about the same few specs, and look at what is made of the answer:
solves, proofs of which other questions consist, and prices of levers.
Rooms whose tests are about the search itself do not share, and no answer that ended
before its time, or for another number of threads or seed, stands for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from meshwright.cost.profile import Profile
from meshwright.deadline import Deadline
from meshwright.explanations.levers import levers_beside
from meshwright.planner import solve as planner
from meshwright.planner.answer import LatticeProof
from meshwright.planner.families import Prepared
from meshwright.planner.options import Options
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import PricedLever
from meshwright.results.serving import ServingOutcome
from meshwright.serving import solve as serving
from meshwright.serving.deployment import ServingJob
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec

TESTS = Path(__file__).parents[1]

ROOMS = {
    "agents", "api", "certificates", "cli", "diagnosis", "docs", "economics", "exports",
    "golden", "hostile", "imports", "loading", "report", "simulation", "sweeps",
    "traces", "ui",
}  # fmt: skip
"""Folders of tests that share."""

WITH_THEM = (
    "explanations/test_judged_plan.py", "laws/test_claims.py", "laws/test_outputs.py",
)  # fmt: skip
"""Files of other folders that share."""

APART = ("test_interrupts.py", "test_same_bytes.py")
"""Files in them whose tests end proofs early, or compare proofs of the same."""

NO_PART = {"interrupt", "on_progress", "profile", "time_limit_s"}
"""Options that no answer has a part in, and the profile, told by its identity."""

OF_SOLVES = {"is_by_kind", "is_safety", "kinds_within"}
"""Options that no single proof has a part in."""

COMPARED = [field.name for field in fields(Options) if field.name not in NO_PART]

PROVE, SOLVE = LatticeProof.outcome, planner._on_one_kind
SERVE, PRICE_LEVERS = serving._solve, levers_beside

_kept: dict[tuple[Any, ...], tuple[Any, object]] = {}
"""By the question: the answer, and the profile, so that its identity stays taken."""


@contextmanager
def answers_kept_for(test: Path) -> Iterator[None]:
    """Share answers while a test runs, if it is in one of the rooms that do."""
    path = test.relative_to(TESTS)
    is_apart = path.parts[0] not in ROOMS or path.name in APART
    if is_apart and path.as_posix() not in WITH_THEM:
        yield
        return
    with (
        mock.patch.object(LatticeProof, "outcome", _outcome),
        mock.patch.object(planner, "_on_one_kind", _on_one_kind),
        mock.patch.object(serving, "_solve", _serving),
        mock.patch("meshwright.api.solve.levers_beside", _levers_beside),
    ):
        yield


def _of_spec(spec: Spec | ServingSpec) -> tuple[str, str]:
    """Return all of a spec: `repr` has what no file can say."""
    return spec.model_dump_json(), repr(spec.__pydantic_private__)


def _on_one_kind(
    spec: Spec, options: Options, deadline: Deadline, prepared: Prepared | None
) -> Outcome:
    """Return the outcome of a solve, that of an earlier one of the same if known."""
    if options.time_limit_s < np.inf:
        return SOLVE(spec, options, deadline, prepared)
    compared = (getattr(options, name) for name in COMPARED)
    question = "solve", *_of_spec(spec), id(options.profile), *compared
    if question not in _kept:
        solved = SOLVE(spec, options, deadline, prepared)
        if deadline.has_passed:
            return solved
        _kept[question] = solved, options.profile
    outcome: Outcome = _kept[question][0]
    return outcome


def _serving(job: ServingJob, options: Options, deadline: Deadline) -> ServingOutcome:
    """Return the outcome of serving, that of an earlier solve of the same if known."""
    if options.time_limit_s < np.inf:
        return SERVE(job, options, deadline)
    compared = (getattr(options, name) for name in COMPARED)
    question = "serving", *_of_spec(job.spec), repr(job.engine), *compared
    if question not in _kept:
        solved = SERVE(job, options, deadline)
        if deadline.has_passed:
            return solved
        _kept[question] = solved, None
    outcome: ServingOutcome = _kept[question][0]
    return outcome


def _levers_beside(
    spec: Spec, outcome: Outcome, profile: Profile
) -> tuple[PricedLever, ...]:
    """Return the levers of a solve, those of an earlier one of the same if known."""
    plan = outcome.best and outcome.best.plan
    question = "levers", *_of_spec(spec), repr(outcome.cluster), repr(plan), id(profile)
    if question not in _kept:
        _kept[question] = PRICE_LEVERS(spec, outcome, profile), profile
    levers: tuple[PricedLever, ...] = _kept[question][0]
    return levers


def _outcome(proof: LatticeProof) -> Outcome:
    """Return the outcome of a proof, that of an earlier one of the same if known."""
    job, options, families = proof.job, proof.options, proof.families
    if options.time_limit_s < np.inf:
        return PROVE(proof)
    question = (
        *(text for one in (job, *job.gpu_kinds) for text in _of_spec(one.spec)),
        repr(job.efficiency),
        id(options.profile),
        *(getattr(options, name) for name in COMPARED if name not in OF_SOLVES),
        proof.known_bound,
        proof.lattice.degrees.tobytes(),
        proof.lattice.legal_degrees.tobytes(),
        families.number.tobytes(),
        families.lower.tobytes(),
    )
    if question not in _kept:
        proven = PROVE(proof)
        if proof.deadline.has_passed:
            return proven
        _kept[question] = proven, options.profile
    outcome: Outcome = _kept[question][0]
    return outcome
