"""Rules of the user never beat the optimum, and those that it keeps change nothing."""

from __future__ import annotations

from random import Random

from meshwright.check.check import keeps, plan_values
from meshwright.cost.job import make_job
from meshwright.plans.plan import Plan
from tests.helpers.random_rules import random_rules
from tests.helpers.strategies import spec_data
from tests.laws.asked import ask, training
from tests.laws.law import Checks, Data, Law


def rules_only_remove_plans(data: Data, choice: Random) -> Checks:
    """Add one random rule, then another."""
    spec, before = training(data), ask(data)
    if before.plan is None:
        return
    rules = [random_rules(spec, choice, most=1)[0] for _ in range(2)]
    for count in (1, 2):
        found = {**data, "rules": rules[:count]}
        after, told = ask(found), f"{rules[:count]}"
        yield before.is_no_slower(after), f"{told}: {after.step_s!r} s beats"
        if before.plan is None:
            return
        job = make_job(training(found))
        assert isinstance(before.plan, Plan)
        values = plan_values(job, before.plan)
        if keeps(job.spec.rules[-1], values):
            is_same = after.step_s == before.step_s
            yield is_same, f"{told} holds at {before.plan}, but {after.plan}"
        before = after


LAW = Law(
    "rules",
    "a rule more never makes the optimum better; one that it keeps changes nothing",
    spec_data(5),
    rules_only_remove_plans,
    tested=8,
)
