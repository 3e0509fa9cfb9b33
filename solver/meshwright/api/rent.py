"""Finds what to rent: `meshwright search --clouds`."""

from __future__ import annotations

import math

from meshwright import DEFAULT_PROFILE
from meshwright.api.options import OnProgress, quiet, read_profile, seconds
from meshwright.api.solve import model_size
from meshwright.cost.profile import Profile
from meshwright.deadline import Deadline, Interrupt
from meshwright.loading.price_list import Offered
from meshwright.planner.open_choices import OpenChoice
from meshwright.planner.options import Options
from meshwright.planner.rentals import Asked, Limits, ranked, rental_choices
from meshwright.results.rentals import RentalAnswer
from meshwright.sweeps.pools import rental_pool


def rent(
    offered: Offered,
    *,
    budget_usd: float | None = None,
    deadline_days: float | None = None,
    workers: int | None = None,
    time_limit_s: float | None = None,
    profile: str | Profile = DEFAULT_PROFILE,
    seed: int = 0,
    on_progress: OnProgress = quiet,
    interrupt: Interrupt | None = None,
) -> RentalAnswer:
    """Return the front of price against time of a run on machines that are offered.

    Args:
        offered: The specs of the question on every machine.
        budget_usd: What the whole run may cost.
        deadline_days: What the whole run may take.
        workers: How many choices are solved at a time; the answer is the same for any.
            Without it one per core.
        time_limit_s: Stop after so many seconds, with the front so far.
        profile: Efficiencies: a file of `meshwright calibrate`, or a bundled name.
        seed: The seed of CP-SAT.
        on_progress: Called with a line whenever something else is being done.
        interrupt: Brings on the end of the time limit once its `is_asked` is set.

    Raises:
        SpecError: the profile cannot be read, or steps take days.
    """
    fitted = read_profile(profile)
    interrupt = interrupt or Interrupt()
    options = Options(seed=seed, profile=fitted, interrupt=interrupt)
    deadline = Deadline(seconds(time_limit_s), interrupt)
    choices = rental_choices(offered.specs, fitted)
    limits = Limits(_or_endless(budget_usd), _or_endless(deadline_days))

    def solve_all(asked: list[Asked]) -> list[OpenChoice]:
        solved = sum(own.choice.step_s is not None for own in choices)
        first = asked[0].choice.spec.cluster
        on_progress(
            f"{solved:,} solved of {len(choices):,} choices; looking at "
            f"{first.count:,} x {first.topology.name} and {len(asked) - 1} more"
        )
        return pool(asked)

    with interrupt.heeded(), rental_pool(workers, options, deadline) as pool:
        found = ranked(choices, limits, solve_all)
    spec = offered.specs[0].spec
    status = "optimal" if found.front else "infeasible"
    return RentalAnswer(
        title=f"{spec.model.name}, {spec.framework}, {spec.training.precision}",
        status=status if found.is_whole else "unknown",
        model=model_size(spec),
        tokens=spec.run.tokens or 0.0,
        budget_usd=budget_usd,
        deadline_days=deadline_days,
        front=tuple(map(found.told, found.front)),
        binds=found.binds,
        cheapest_in_time=found.told(found.in_time) if found.in_time else None,
        fastest_in_budget=found.told(found.in_budget) if found.in_budget else None,
        closed=found.closed,
        rentals=found.rentals,
        impossible=len(offered.errors),
        why_impossible=offered.errors[0] if offered.errors else "",
    )


def _or_endless(limit: float | None) -> float:
    return math.inf if limit is None else limit
