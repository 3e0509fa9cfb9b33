"""The optimum, the simplest plan and the near set are those that brute force finds."""

from __future__ import annotations

from random import Random

from meshwright.cost.profile import Profile
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.plans.simplicity import complexity
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import NearPlans
from meshwright.spec.goals import CRITERIA, METRICS
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.run_before import DECISIONS, text_of
from meshwright.spec.spec import Spec
from tests.helpers.oracle import brute_force
from tests.helpers.random_rules import random_rules
from tests.helpers.simplicity_oracle import DECISIONS as FIELDS
from tests.helpers.simplicity_oracle import Everything, everything
from tests.helpers.strategies import spec_data
from tests.laws.law import Checks, Data, Law

TINY = 1e-6
"""Share of a step time that rounding to ticks may move the end of a tolerance."""

TOLERANCES = (0.0, 0.005, 0.02, 0.05, 0.2)

MONEY = "usd_per_mtoken"
"""Needs a price, which random specs do not have."""


def brute_force_agrees(data: Data, choice: Random) -> Checks:
    """Ask with random rules, objective and tolerance, and random runs known before."""
    profile = with_known_runs(data["framework"], choice)
    spec = profile.applied_to(with_questions(data, choice))
    fastest_s = brute_force(spec).step_s
    within = spec.objective.tolerance
    near = max(within, 0.001)
    outcome = solve(spec, Options(tolerance=within, near=near, profile=profile))
    asked = f"rules {[rule.that for rule in spec.rules]}, {spec.objective.levels}: "
    if outcome.best is None:
        is_none = outcome.status == "infeasible" and fastest_s == float("inf")
        yield is_none, f"{asked}{outcome.status}, but brute force has {fastest_s!r} s"
        return
    for holds, sentence in _plans_agree(spec, outcome, fastest_s):
        yield holds, asked + sentence


def with_known_runs(framework: str, choice: Random) -> Profile:
    """Return a profile that knows of some runs, or of none."""
    if choice.random() < 0.4:
        return Profile()
    texts = (
        text_of(tuple(choice.randrange(len(one.words)) for one in DECISIONS))
        for _ in range(choice.randint(1, 4))
    )
    known = {framework: {text: choice.choice((2, 10)) for text in texts}}
    return Profile(run_before=known, doubt=choice.choice((0.01, 0.05, 0.15)))


def with_questions(data: Data, choice: Random) -> Spec:
    """Return a spec with random rules, objective and tolerance."""
    spec = Spec.model_validate(data)
    rules = random_rules(spec, choice) if choice.random() < 0.8 else []
    metric = choice.choice([one for one in METRICS if one not in (MONEY, "gpus")])
    criteria = choice.sample(CRITERIA, choice.randint(1, len(CRITERIA)))
    levels = [{metric: choice.choice(TOLERANCES)}, {"simplest": criteria}]
    objective = choice.choice([levels, [{"gpus": 0}, *levels]])
    return Spec.model_validate({**data, "rules": rules, "objective": objective})


def _plans_agree(spec: Spec, outcome: Outcome, fastest_s: float) -> Checks:
    known, near = outcome.certificate, outcome.near
    assert known is not None
    assert near is not None
    assert outcome.optimum is not None
    off_s = 2 * known.rounding_s + TINY * fastest_s
    own_s = outcome.optimum.step_s
    yield outcome.status == "optimal", f"{outcome.status} after {own_s!r} s"
    yield abs(own_s - fastest_s) <= off_s, f"{own_s!r} s, brute force {fastest_s!r} s"
    most = 1 + near.within
    if outcome.certificate and outcome.certificate.doubt:
        # The plan of the least doubted step is not doubted more than the fastest.
        most *= max(1.0, outcome.optimum.doubted_s / outcome.optimum.step_s)
    every = everything(spec, fastest_s * most + off_s)
    yield from _simplest_agrees(spec, outcome, every, off_s)
    yield near.is_proven, "the near set is not proven"
    yield from _near_agrees(near, every, off_s)
    first_s = near.plans[0].step_s
    yield first_s == own_s, f"the first near plan takes {first_s!r} s, not {own_s!r} s"


def _simplest_agrees(
    spec: Spec, outcome: Outcome, every: Everything, off_s: float
) -> Checks:
    """Compare the simplest plan, where the objective has a tolerance."""
    assert outcome.best is not None
    assert outcome.certificate is not None
    criteria, within = spec.objective.criteria, spec.objective.tolerance
    if not within:
        return
    yield outcome.certificate.is_simplest, "the simplest plan is not proven"
    found = complexity(spec, outcome.best.plan, criteria)
    most_s = every.least_doubted_s * (1 + within)
    less, _ = every.simplest(most_s + off_s)
    more, simplest_s = every.simplest(most_s - off_s)
    told = f"{outcome.best.plan} is {found} by {criteria}, brute force {less} to {more}"
    yield less <= found <= more, told
    own_s = outcome.best.doubted_s
    is_equal = less != more or abs(own_s - simplest_s) <= off_s
    yield is_equal, f"{told}: {own_s!r} s and {simplest_s!r} s"


def _near_agrees(near: NearPlans, every: Everything, off_s: float) -> Checks:
    """Compare the number of near plans, and the values of each decision in them."""
    most_s = every.fastest_s * (1 + near.within)
    low, high = every.near(most_s - off_s), every.near(most_s + off_s)
    told = f"{near.count} plans, brute force {len(low)} to {len(high)}"
    yield len(low) <= near.count <= len(high), told
    for index, name in enumerate(FIELDS):
        (found,) = (decision for decision in near.decisions if decision.name == name)
        sizes = [len({key[index] for key in keys}) for keys in (low, high)]
        told = f"{name} has {len(found.values)} values, brute force {sizes}"
        yield sizes[0] <= len(found.values) <= sizes[1], told
        yield sum(value.plans for value in found.values) == near.count, told
        fastest_with = every.fastest_with(name)
        for value in found.values:
            takes_s = every.fastest_s * (1 + value.loss)
            least_s = fastest_with[FIELD[name].encoded(value.value)]
            told = f"{name} {value.value} takes {takes_s!r} s, brute force {least_s!r}"
            yield abs(takes_s - least_s) <= off_s, told


LAW = Law(
    "brute_force",
    "the optimum, the simplest plan and the near set are those of brute force",
    spec_data(5),
    brute_force_agrees,
    tested=6,
)
