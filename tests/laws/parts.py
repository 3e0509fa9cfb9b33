"""The best plan at every degree and with each set of techniques is what it is said.

Where it is proven, brute force finds no faster one; where it is not, the bound is no
more than what brute force finds, and the plan that was constructed no less.
"""

from __future__ import annotations

from itertools import product
from math import inf
from random import Random

from meshwright.cost.job import make_job
from meshwright.deadline import Deadline
from meshwright.explanations.decisions import with_pins
from meshwright.planner.options import Options
from meshwright.planner.parts import Part, PartPlan
from meshwright.planner.prepared import prepare
from meshwright.planner.solve import best_of_parts, kinds_in, solve
from meshwright.plans.simplicity import name_of
from meshwright.spec.base import divisors
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec
from tests.helpers.oracle import brute_force
from tests.helpers.random_rules import random_rules
from tests.helpers.strategies import spec_data
from tests.laws.law import Checks, Data, Law

AXES = ("tp", "pp", "dp", "cp")
"""In the order of the bits of a set of techniques."""

SHARES = (0.0, 0.02, 0.1, 0.5, inf)
"""Shares over the fastest step up to which plans are proven."""


def parts_agree(data: Data, choice: Random) -> Checks:
    """Ask for all parts of a spec whose degrees are open, often under rules."""
    kept = {n: pin for n, pin in data.get("pins", {}).items() if n[:2] not in AXES}
    spec = Spec.model_validate(data | {"pins": kept})
    rules = random_rules(spec, choice) if choice.random() < 0.5 else []
    spec = Spec.model_validate(spec.model_dump() | {"rules": rules})
    prepared = prepare(make_job(spec))
    outcome = solve(spec, Options(), prepared)
    if outcome.best is None:
        return
    degrees = divisors(spec.cluster.gpus)
    parts = [Part(axis, degree) for axis in AXES for degree in degrees]
    parts += kinds_in(prepared.lattice)
    within = choice.choice(SHARES)
    found = best_of_parts(prepared, parts, Options(), Deadline(), outcome, within)
    known = outcome.certificate
    assert known is not None
    least = least_steps(spec)
    for part, plan in found.items():
        expected_s = least.get(part, inf)
        off_s = 2 * known.rounding_s + 1e-9 * (plan.best.step_s if plan.best else 0.0)
        name = name_of(part.value) if part.column == "kind" else str(part.value)
        told = f"{part.column} {name} within {within}: {expected_s!r} s, but {plan}"
        yield is_true(plan, expected_s, off_s), told
        is_near = expected_s + off_s < outcome.best.step_s * (1 + within)
        # Under rules of the user, effort may be spent before a part is proven.
        is_proven = plan.is_proven or not is_near or bool(rules)
        yield is_proven, f"{told}; it is near, and not proven"


def is_true(plan: PartPlan, expected_s: float, off_s: float) -> bool:
    """Return whether all that is said of a part is true."""
    if plan.best is None:
        return expected_s == inf or not plan.is_proven
    if plan.is_proven:
        return abs(plan.best.step_s - expected_s) <= off_s
    return plan.bound_s - off_s <= expected_s <= plan.best.step_s + off_s


def least_steps(spec: Spec) -> dict[Part, float]:
    """Return the least step time of every part, by brute force."""
    least: dict[Part, float] = {}
    gpus = spec.cluster.gpus
    for tp, pp, dp in product(divisors(gpus), repeat=3):
        if gpus % (tp * pp * dp):
            continue
        degrees = {"tp": tp, "pp": pp, "dp": dp, "cp": gpus // (tp * pp * dp)}
        step_s = brute_force(with_pins(spec, Pins.model_validate(degrees))).step_s
        bits = sum(1 << bit for bit, axis in enumerate(AXES) if degrees[axis] > 1)
        for part in (*map(Part, degrees, degrees.values()), Part("kind", bits)):
            least[part] = min(least.get(part, inf), step_s)
    return least


LAW = Law(
    "parts",
    "The best plan at each degree, and with each set of techniques, is what is said.",
    spec_data(4),
    parts_agree,
    tested=3,
)
