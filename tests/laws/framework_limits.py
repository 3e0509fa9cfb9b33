"""Lifting a limit of a framework never makes the best plan slower."""

from __future__ import annotations

from random import Random

from meshwright.check.check import broken_rules
from meshwright.frameworks.base.registry import limits_of
from meshwright.plans.plan import Plan
from tests.helpers.strategies import spec_data
from tests.laws.asked import Answer, ask, job_of, training
from tests.laws.law import Checks, Data, Law

MOST_LIMITS = 4
"""Limits of each framework that are lifted alone."""

FLOAT = 1e-12
"""Of a time: what sums of floats lie apart in another order."""


def lifted_limits_never_cost(data: Data, choice: Random) -> Checks:
    """Lift limits alone and all at once, with and without knowing the best plan."""
    spec, within = training(data), ask(data)
    names = [limit.name for limit in limits_of(spec)]
    every = ask(spec.without_limits(names))
    yield every.is_no_slower(within), f"without {names}: {every.step_s!r} s"
    for name in choice.sample(names, min(MOST_LIMITS, len(names))):
        free = spec.without_limits([name])
        found = ask(free)
        told = f"without {name} {found.step_s!r} s: {found.plan}"
        yield found.is_no_slower(within), f"{told}; with it {within.step_s!r} s"
        yield every.is_no_slower(found), f"{told}; without any {every.step_s!r} s"
        known = ask(free, known_s=within.step_s)
        same = found.step_s < within.step_s * (1 - FLOAT)
        yield not same or known.plan == found.plan, f"{told}; known {known.outcome}"
        yield from _breaks_that_limit_alone(within, found, name, data)


def _breaks_that_limit_alone(
    within: Answer, answer: Answer, name: str, data: Data
) -> Checks:
    """Check a plan without a limit by the rules with it: the limit, or nothing."""
    if not isinstance(answer.plan, Plan):
        return
    broken = {
        rule.rule for rule in broken_rules(job_of(training(data), answer), answer.plan)
    }
    yield broken <= {name}, f"without {name} {answer.plan} breaks {broken}"
    if not broken:
        yield (
            within.is_no_slower(answer),
            f"without {name}, {answer.plan} breaks nothing",
        )


LAW = Law(
    "framework limits",
    "a limit of a framework, lifted, never makes the best plan slower",
    spec_data(8),
    lifted_limits_never_cost,
    tested=15,
)
