"""A batch k times as large takes at least as long, and at most k times as long.

Both are proven of plans that differ in the count of micro-batches alone. With m of them
a step takes fill + (m - 1) pace + sync, and fill >= pace: so

    T(m) <= T(k m) <= k T(m).

Of optima it follows where such a plan is legal. The best plan for the batch B, with k
times the micro-batches, holds more only where its schedule keeps more of them in
flight: where it still breaks no rule, the optimum of k B takes at most k times as long.
The best plan for k B, with a k-th of the micro-batches, shows that the optimum of B
takes no longer, where k divides them and no rule is broken. It need not otherwise: on
two GPUs one sequence cannot be split over data-parallel ranks, two can.

The limit on links is left out: a shorter step may not pass it.
"""

from __future__ import annotations

from random import Random

from meshwright.check.check import broken_rules, check
from meshwright.cost.profile import Profile
from meshwright.results.priced_plan import PricedPlan
from tests.laws.asked import ask, training
from tests.laws.law import Checks, Data, Law, plain
from tests.laws.specs import one_cluster_data

FLOAT = 1e-12


def batches_scale(data: Data, choice: Random) -> Checks:
    """Hold a batch against k times the batch."""
    times = choice.choice([2, 3, 5])
    small = plain(data)
    small.get("limits", {}).pop("max_link_utilisation", None)
    small["pins"].pop("microbatches", None)
    large = plain(small)
    large["training"]["global_batch"] *= times
    less, more = ask(small), ask(large)
    off_s = (1 + times) * (less.rounding_s + more.rounding_s)
    for repeated_s in _counted_s(large, less.best, times, 1):
        told = f"x {times}: {repeated_s!r} s, once {less.step_s!r}; {less.plan}"
        yield repeated_s <= times * less.step_s * (1 + FLOAT), told
        yield less.step_s <= repeated_s * (1 + FLOAT), told
        yield more.step_s <= repeated_s * (1 + FLOAT) + off_s, f"optimum, {told}"
    for once_s in _counted_s(small, more.best, 1, times):
        told = f"/ {times}: {once_s!r} s, before {more.step_s!r}; {more.plan}"
        yield once_s <= more.step_s * (1 + FLOAT), told
        yield more.step_s <= times * once_s * (1 + FLOAT), told
        yield less.step_s <= once_s * (1 + FLOAT) + off_s, f"optimum, {told}"


def _counted_s(data: Data, best: object, times: int, share: int) -> list[float]:
    """Return the step time of a plan with other micro-batches, if it is legal."""
    if not isinstance(best, PricedPlan) or best.plan.microbatches % share:
        return []
    count = best.plan.microbatches * times // share
    plan = best.plan.model_copy(update={"microbatches": count})
    job = Profile().job(training(data))
    return [] if broken_rules(job, plan) else [check(job, plan).step_s]


LAW = Law(
    "batches",
    "k batches take at least as long as one, and at most k times as long",
    one_cluster_data(),
    batches_scale,
    tested=20,
)
