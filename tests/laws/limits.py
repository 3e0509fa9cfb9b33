"""A time limit leaves a true bound, a true plan and an honest status."""

from __future__ import annotations

import math
from random import Random

from tests.laws.asked import Answer, ask
from tests.laws.law import Checks, Data, Law
from tests.laws.specs import every_data

LIMITS_S = (0.0, 0.001, 0.01, 0.03)
"""From none at all to what many of the specs take."""

FLOAT = 1e-12
"""Of a time: what sums of floats lie apart in another order."""


def limits_bracket_the_optimum(data: Data, _choice: Random) -> Checks:
    """Solve with less and less time."""
    proven = ask(data)
    for limit_s in LIMITS_S:
        hurried = ask(data, time_limit_s=limit_s)
        for holds, told in _is_honest(proven, hurried):
            yield holds, f"{limit_s} s: {hurried.outcome.status}: {told}"


def _is_honest(proven: Answer, hurried: Answer) -> Checks:
    status, known = hurried.outcome.status, hurried.outcome.certificate
    least_s, own_s = proven.step_s, hurried.step_s
    told = f"{own_s!r} s, the optimum has {least_s!r}; {known}"
    yield (known is not None) == (own_s < math.inf), told
    if status == "optimal":
        yield own_s == least_s, told
        yield hurried.plan == proven.plan, f"{hurried.plan} for {proven.plan}"
    elif status == "infeasible":
        yield least_s == math.inf, told
    elif status == "unknown":
        yield own_s == math.inf, told
    if known is not None:
        off_s = hurried.rounding_s + proven.rounding_s
        yield known.bound_s <= least_s * (1 + FLOAT) + off_s, f"bound: {told}"
        yield least_s <= own_s * (1 + FLOAT) + off_s, f"plan: {told}"
        yield (known.gap == 0) or status == "feasible", f"gap: {told}"
        yield 0 <= known.gap < 1, f"gap: {told}"


LAW = Law(
    "limits",
    "with any time limit bound <= optimum <= step, and the status is true",
    every_data(),
    limits_bracket_the_optimum,
    tested=10,
)
