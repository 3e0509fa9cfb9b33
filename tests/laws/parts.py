"""The best plan at every degree and with each set of techniques is what it is said.

Where it is proven, brute force finds none that takes less; where it is not, the bound
is no more than what brute force finds, and the plan that was constructed no less. It
is so of steps, and of doubted steps where some runs are known.
"""

from __future__ import annotations

from math import inf
from random import Random

from meshwright.cost.job import make_job
from meshwright.deadline import Deadline
from meshwright.planner.families import prepare
from meshwright.planner.options import Options
from meshwright.planner.parts import Part, PartPlan, can_be_searched
from meshwright.planner.solve import best_of_parts, kinds_in, solve
from meshwright.plans.simplicity import name_of
from meshwright.spec.base import divisors
from meshwright.spec.run_before import DECISIONS
from meshwright.spec.spec import Spec
from tests.helpers.random_rules import random_rules
from tests.helpers.simplicity_oracle import DECISIONS as FIELDS
from tests.helpers.simplicity_oracle import everything
from tests.helpers.strategies import spec_data
from tests.laws.brute_force import with_known_runs
from tests.laws.law import Checks, Data, Law

AXES = ("tp", "pp", "dp", "cp")
"""In the order of the bits of a set of techniques."""

SHARES = (0.0, 0.02, 0.1, 0.5, inf)
"""Shares over the fastest step up to which plans are proven."""


def parts_agree(data: Data, choice: Random) -> Checks:
    """Ask for all parts of a spec whose degrees are open, often under rules."""
    profile = with_known_runs(data["framework"], choice)
    kept = {n: pin for n, pin in data.get("pins", {}).items() if n[:2] not in AXES}
    spec = Spec.model_validate(data | {"pins": kept})
    rules = random_rules(spec, choice) if choice.random() < 0.5 else []
    spec = Spec.model_validate(spec.model_dump() | {"rules": rules})
    spec = profile.applied_to(spec)
    prepared = prepare(make_job(spec))
    outcome = solve(spec, Options(profile=profile), prepared)
    if outcome.best is None:
        return
    degrees = divisors(spec.cluster.gpus)
    parts = [
        Part(axis, degree, is_doubted)
        for axis in AXES
        for degree in degrees
        for is_doubted in {False, can_be_searched(prepared)}
    ]
    parts += kinds_in(prepared.lattice)
    within = choice.choice(SHARES)
    found = best_of_parts(prepared, parts, Options(), Deadline(), outcome, within)
    known = outcome.certificate
    assert known is not None
    least = least_steps(spec)
    for part, plan in found.items():
        expected_s = least.get(part, inf)
        off_s = 2 * known.rounding_s + 1e-9 * (plan.best.step_s if plan.best else 0.0)
        off_s *= 1 + spec.run_before.share * len(DECISIONS)
        name = name_of(part.value) if part.column == "kind" else str(part.value)
        told = f"{part.column} {name} within {within}: {expected_s!r} s, but {plan}"
        told += " (doubted)" if part.is_doubted else ""
        yield is_true(part, plan, expected_s, off_s), told
        most_s = part.takes_s(outcome.best) * (1 + within)
        is_near = expected_s + off_s < most_s
        # Under rules of the user, effort may be spent before a part is proven.
        is_proven = plan.is_proven or not is_near or bool(rules)
        yield is_proven, f"{told}; it is near, and not proven"


def is_true(part: Part, plan: PartPlan, expected_s: float, off_s: float) -> bool:
    """Return whether all that is said of a part is true."""
    if plan.best is None:
        return expected_s == inf or not plan.is_proven
    if plan.is_proven:
        return abs(part.takes_s(plan.best) - expected_s) <= off_s
    return plan.bound_s - off_s <= expected_s <= part.takes_s(plan.best) + off_s


def least_steps(spec: Spec) -> dict[Part, float]:
    """Return the least step, and the least doubted one, of every part."""
    least: dict[Part, float] = {}
    every = everything(spec)
    times = zip(every.decisions, every.step_s, every.doubted_s, strict=True)
    for decisions, step_s, doubted_s in times:
        row = dict(zip(FIELDS, decisions, strict=True))
        degrees = row | {"dp": row["dp_shard"] * row["dp_replicate"]}
        bits = sum(1 << bit for bit, axis in enumerate(AXES) if degrees[axis] > 1)
        for is_doubted, takes_s in ((False, step_s), (True, doubted_s)):
            of_axes = [Part(axis, degrees[axis], is_doubted) for axis in AXES]
            for part in (*of_axes, Part("kind", bits, is_doubted)):
                least[part] = min(least.get(part, inf), takes_s)
    return least


LAW = Law(
    "parts",
    "The best plan at each degree, and with each set of techniques, is what is said.",
    spec_data(4),
    parts_agree,
    tested=3,
)
