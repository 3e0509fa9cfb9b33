"""Proofs that tests of words, formats, pages and exports share within a process.

They ask in many ways about the same few specs, and look at what is made of the answer.
Rooms whose tests are about the search itself do not share, and no proof that ended
before its time, or for another number of threads or seed, stands for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

from meshwright.planner.answer import LatticeProof
from meshwright.planner.options import Options
from meshwright.results.outcome import Outcome

TESTS = Path(__file__).parents[1]

ROOMS = {
    "agents", "api", "certificates", "cli", "diagnosis", "docs", "economics", "exports",
    "golden", "hostile", "imports", "loading", "report", "simulation", "traces", "ui",
}  # fmt: skip
"""Folders of tests that share."""

APART = ("test_interrupts.py", "test_same_bytes.py")
"""Files in them whose tests end proofs early, or compare proofs of the same."""

NO_PART = {
    "interrupt", "is_by_kind", "is_safety", "kinds_within", "on_progress", "profile",
    "time_limit_s",
}  # fmt: skip
"""Options that no proof has a part in, and the profile, told by its identity."""

COMPARED = [own.name for own in fields(Options) if own.name not in NO_PART]

PROVE = LatticeProof.outcome

_kept: dict[tuple[Any, ...], tuple[Outcome, object]] = {}
"""By the question: the outcome, and the profile, so that its identity stays taken."""


@contextmanager
def answers_kept_for(test: Path) -> Iterator[None]:
    """Share proofs while a test runs, if it is in one of the rooms that do."""
    if test.relative_to(TESTS).parts[0] not in ROOMS or test.name in APART:
        yield
        return
    with mock.patch.object(LatticeProof, "outcome", _outcome):
        yield


def _outcome(proof: LatticeProof) -> Outcome:
    """Return the outcome of a proof, that of an earlier one of the same if known."""
    job, options, families = proof.job, proof.options, proof.families
    question = (
        *(own.spec.model_dump_json() for own in (job, *job.gpu_kinds)),
        repr(job.spec.__pydantic_private__),
        repr(job.efficiency),
        id(options.profile),
        *(getattr(options, name) for name in COMPARED),
        proof.known_bound,
        proof.lattice.degrees.tobytes(),
        proof.lattice.legal_degrees.tobytes(),
        families.number.tobytes(),
        families.lower.tobytes(),
    )
    if question not in _kept:
        outcome = PROVE(proof)
        if proof.deadline.has_passed:
            return outcome
        _kept[question] = outcome, options.profile
    return _kept[question][0]
