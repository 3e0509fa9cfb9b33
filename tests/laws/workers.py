"""Workers, seeds and the order of sets do not change an answer."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.serving.solve import solve_serving
from meshwright.spec.serving import ServingSpec
from tests.helpers.texts import whole_text
from tests.laws.asked import question
from tests.laws.law import Checks, Data, Law, as_yaml
from tests.laws.specs import every_data

HOW = [(1, 0), (4, 0), (1, 1), (4, 7)]
"""Workers and seeds."""

HASHED = 0.02
"""Share of the specs that other processes solve too, with other hashes."""

READS_A_SPEC = """
import sys, yaml
from tests.laws.workers import printed
print(printed(yaml.safe_load(sys.stdin.read())), end="")
"""


def nothing_but_the_spec_matters(data: Data, choice: Random) -> Checks:
    """Print the answer to a spec in many ways, and in other processes."""
    first = printed(data)
    for workers, seed in HOW[1:]:
        found = printed(data, workers, seed)
        yield (
            found == first,
            f"{workers} workers, seed {seed}: {_first_other(first, found)}",
        )
    for hashes in ("1", "2") if choice.random() < HASHED else ():
        found = _elsewhere(data, hashes)
        yield found == first, f"PYTHONHASHSEED={hashes}: {_first_other(first, found)}"


def printed(data: Data, workers: int = 1, seed: int = 0) -> str:
    """Return what is printed of an answer, but the seed."""
    spec, options = question(data), Options(workers=workers, seed=seed, top=2)
    outcome = (
        solve_serving(spec, options)
        if isinstance(spec, ServingSpec)
        else solve(spec, options)
    )
    if outcome.certificate is not None:
        known = outcome.certificate.model_copy(update={"seed": 0})
        outcome = outcome.model_copy(update={"certificate": known})
    if isinstance(outcome, Outcome):
        return whole_text(outcome) + outcome.to_json()
    return outcome.model_dump_json(indent=1)


def _elsewhere(data: Data, hashes: str) -> str:
    command = [sys.executable, "-c", READS_A_SPEC]
    environment = {**os.environ, "PYTHONHASHSEED": hashes}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command, input=as_yaml(data), env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def _first_other(first: str, given: str) -> str:
    """Return the first line that differs, both ways."""
    pairs = zip(first.splitlines(), given.splitlines(), strict=False)
    return next((f"{a!r} became {b!r}" for a, b in pairs if a != b), "its length")


LAW = Law(
    "workers",
    "workers, seeds and hashes of sets do not change an answer",
    every_data(),
    nothing_but_the_spec_matters,
    tested=6,
)
