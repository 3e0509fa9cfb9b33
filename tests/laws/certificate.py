"""A certificate says what was proven, and its numbers add up."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

from meshwright.explanations.conflict import any_skeleton_fits, solve_only_decisions
from meshwright.results.outcome import Counts
from meshwright.spec.serving import FixedSpec, ServingSpec
from meshwright.spec.spec import Spec
from tests.helpers import oracle, serving_oracle
from tests.laws.asked import Answer, ask, question, seconds_of
from tests.laws.law import Checks, Data, Law
from tests.laws.specs import every_data

FLOAT = 1e-12
MOST_GPUS, MOST_LAYERS = 4, 4
"""Of specs whose every plan is looked at."""

ROUNDED_GIB = 2.0**-10
"""More than rounding up to kibibytes adds to a stage: some 250 amounts at most."""


def certificates_are_true(data: Data, _choice: Random) -> Checks:
    """Compare an answer with its certificate, and with every plan of small specs."""
    spec, answer = question(data), ask(data, top=1 if "inference" in data else 3)
    status, known = answer.outcome.status, answer.outcome.certificate
    yield status in ("optimal", "infeasible"), f"{status} without a limit"
    yield (status == "optimal") == (known is not None), f"{status} with {known}"
    if known is not None:
        off_s = abs(known.bound_s - answer.step_s)
        yield known.gap == 0, f"optimal with {known}"
        yield off_s <= known.rounding_s, f"{answer.step_s!r} s, proven {known}"
        yield _add_up(known.counts), f"{known.counts}"
        yield from _parts_add_up(answer)
        yield from _in_order(answer)
    yield from _enumerated(spec, answer)


def _add_up(counts: Counts) -> bool:
    known = counts.no_memory, counts.bounded, counts.survivors
    return min(known) >= 0 < counts.survivors and sum(known) == counts.skeletons


def _in_order(answer: Answer) -> Checks:
    """Hold the plans that come next against those before them."""
    plans = [each for each in (answer.best, *answer.others) if each is not None]
    slack_s = 2 * answer.rounding_s
    for one, other in pairwise(plans):
        told = f"{seconds_of(one)!r} s comes before {seconds_of(other)!r}"
        yield seconds_of(one) <= seconds_of(other) + slack_s, told
    distinct = {plan.plan.model_dump_json() for plan in plans}
    yield len(distinct) == len(plans), f"alike: {plans}"


def _parts_add_up(answer: Answer) -> Checks:
    """Hold the parts of time and of memory against their sums."""
    best = answer.best
    assert best is not None
    parts = best.time_parts if hasattr(best, "time_parts") else best.objective_parts
    told = f"{parts} is not {answer.step_s!r} s"
    yield math.isclose(sum(parts.values()), answer.step_s, rel_tol=FLOAT), told
    for stage in best.stages:
        own_gib = sum(stage.parts.values())
        told = f"{stage}"
        yield math.isclose(own_gib, stage.total_gib, rel_tol=FLOAT), told
        yield stage.total_gib <= stage.usable_gib, told


def _enumerated(spec: FixedSpec, answer: Answer) -> Checks:
    """Hold the status against the enumeration: of every plan, or of rows with room."""
    if isinstance(spec, ServingSpec) or _is_small(spec):
        yield from _by_force(spec, answer)
    elif not spec.cluster.parts and not solve_only_decisions(spec):
        has_plan = answer.outcome.status == "optimal"
        yield any_skeleton_fits(spec) == has_plan, f"room for a plan: {not has_plan}"


def _is_small(spec: Spec) -> bool:
    is_one_kind = not spec.cluster.parts
    few_gpus = spec.cluster.gpus <= MOST_GPUS
    return is_one_kind and few_gpus and spec.model.n_layers <= MOST_LAYERS


def _by_force(spec: FixedSpec, answer: Answer) -> Checks:
    """Compare with all plans; memory that is rounded up may leave out a close one."""
    least_s, off_s = _brute_force(spec), 2 * answer.rounding_s
    told = f"{answer.step_s!r} s, by brute force {least_s!r}"
    yield answer.step_s >= least_s - off_s, told
    if answer.step_s > least_s + off_s:
        less = {"memory_gib": spec.usable_gib - ROUNDED_GIB}
        limits = spec.limits.model_copy(update=less)
        safe_s = _brute_force(spec.model_copy(update={"limits": limits}))
        yield answer.step_s <= safe_s + off_s, told


def _brute_force(spec: FixedSpec) -> float:
    if isinstance(spec, ServingSpec):
        return serving_oracle.brute_force(spec)
    return oracle.brute_force(spec).step_s


LAW = Law(
    "certificate",
    "optimal is proven, infeasible is so by enumeration, and the numbers add up",
    every_data(),
    certificates_are_true,
    tested=15,
)
