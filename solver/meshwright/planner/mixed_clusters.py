"""Arrangements of a job on a cluster of unlike parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

from meshwright.economics.planned_run import level_value
from meshwright.results.outcome import Counts, Outcome, PricedArrangement
from meshwright.spec.cluster import Cluster, Part, StagedCluster
from meshwright.spec.goals import SIMPLEST, Level
from meshwright.spec.spec import Spec

PARTS_OPEN = "It was stopped before all ways to use the parts were looked at."


class Arrangement(NamedTuple):
    """One way to use the parts: the spec to solve, and a sentence that says it."""

    spec: Spec
    sentence: str


def arrangements(spec: Spec) -> Iterator[Arrangement]:
    """Yield the arrangements of a job on the parts of its cluster, simple ones first.

    Parts can be left out. Several parts can be used as if all GPUs were as slow and as
    small as the least of them, since a step waits for the slowest. Or each pipeline
    stage lies on one part, in any order of the parts.
    """
    for chosen, cluster in spec.cluster.part_choices():
        used = set(map(id, chosen))
        left = [part for part in spec.cluster.parts if id(part) not in used]
        out = f", leaves out {_names(left, ' and ')}" if left else ""
        names = _names(chosen, " and ")
        if len(chosen) == 1:
            yield _with(spec, cluster, f"runs on {names} alone{out}")
            continue
        spread = f"spreads over {names} as if all were the least{out}"
        yield _with(spec, cluster, spread)
        for order in permutations(chosen):
            join = spec.cluster.join
            staged = StagedCluster(parts=chosen, join=join, order=order)
            names = _names(order, ", then ")
            yield _with(spec, staged, f"puts pipeline stages on {names}{out}")


def _with(spec: Spec, cluster: Cluster, sentence: str) -> Arrangement:
    return Arrangement(spec.model_copy(update={"cluster": cluster}), sentence)


def _names(parts: Sequence[Part], between: str) -> str:
    return between.join(f"{part.count} x {part.topology.name}" for part in parts)


def best_of(
    spec: Spec,
    ways: Sequence[Arrangement],
    found: list[Outcome],
    answered: Callable[[int], Outcome],
) -> Outcome:
    """Return the best outcome by the objective, with a proof over all of them.

    Of equals it is the simplest. `found` are the outcomes of the first arrangements by
    which they are compared; `answered` returns all that is asked of one.
    """
    told = [
        PricedArrangement(
            sentence=way.sentence,
            step_s=_step_s(outcome),
            doubted_s=_doubted_s(outcome),
        )
        for way, outcome in zip(ways, found, strict=False)
    ]
    order = sorted(range(len(found)), key=lambda i: _rank(found[i]))
    chosen = _first_by_levels(spec, found, order)
    update: dict[str, Any] = {"arrangements": tuple(told[i] for i in order)}
    is_whole, best = len(found) == len(ways), found[chosen]
    if best.best and best.certificate:
        best = answered(chosen)
        assert best.certificate is not None
        is_by_step = chosen == order[0] and not best.certificate.doubt
        levels = () if is_by_step else spec.objective.names
        every = [*found[:chosen], best, *found[chosen + 1 :]]
        update |= _certified(best, every, is_whole, levels)
    elif not is_whole or any(outcome.status == "unknown" for outcome in found):
        update["status"] = "unknown"
    return best.model_copy(update=update)


def _first_by_levels(spec: Spec, outcomes: list[Outcome], order: list[int]) -> int:
    """Return the outcome that is best by the levels of the objective.

    `order` has the fastest first. Each level leaves those within its tolerance, and
    prefers the better among them to the faster.
    """
    left = [i for i in order if _step_s(outcomes[i]) is not None]
    for level in spec.objective.levels:
        if level.metric == SIMPLEST or not left:
            continue
        values = {i: _value(spec, level, outcomes[i]) for i in left}
        least = min(values.values())
        left = [i for i in left if values[i] <= least * (1 + level.tolerance)]
        left.sort(key=lambda i: values[i])
    return left[0] if left else order[0]


def _value(spec: Spec, level: Level, outcome: Outcome) -> float:
    cluster, step_s = outcome.cluster, _step_s(outcome)
    assert cluster is not None
    assert step_s is not None
    return level_value(level, spec, cluster, _doubted_s(outcome) or step_s)


def _certified(
    best: Outcome, every: list[Outcome], is_whole: bool, levels: tuple[str, ...]
) -> dict[str, Any]:
    """Return the status and certificate of the best outcome over all arrangements.

    The bound on the step is that of all arrangements. Where `levels` make another than
    the fastest the best, all must be proven, and the bound is that of the best.
    """
    certificate, plan = best.certificate, best.optimum
    assert certificate is not None
    assert plan is not None
    proofs = [outcome.certificate for outcome in every if outcome.certificate]
    is_open = not is_whole or any(outcome.status == "unknown" for outcome in every)
    bound_s = 0.0 if is_open else min(proof.bound_s for proof in proofs)
    if levels:
        bound_s = certificate.bound_s
    is_proven = is_whole and all(
        outcome.status in ("optimal", "infeasible")
        or (
            not levels
            and outcome is not best
            and _is_slower(outcome, certificate.bound_s)
        )
        for outcome in every
    )
    gap = 0.0 if is_proven else max(0.0, 1 - bound_s / plan.step_s)
    counts = Counts(
        **{
            name: sum(getattr(proof.counts, name) for proof in proofs)
            for name in Counts.model_fields
        }
    )
    left_open = certificate.left_open or next(
        (proof.left_open for proof in proofs if proof.left_open), PARTS_OPEN
    )
    changed = {"bound_s": bound_s, "gap": gap, "counts": counts, "levels": levels}
    changed["left_open"] = "" if is_proven else left_open
    return {
        "status": "optimal" if is_proven else "feasible",
        "certificate": certificate.model_copy(update=changed),
    }


def _is_slower(outcome: Outcome, step_s: float) -> bool:
    """Return whether no plan of an arrangement is faster than a step time."""
    return outcome.certificate is not None and outcome.certificate.bound_s >= step_s


def _step_s(outcome: Outcome) -> float | None:
    return outcome.best.step_s if outcome.best else None


def _doubted_s(outcome: Outcome) -> float | None:
    """Return the doubted step, where plans are compared by it."""
    is_doubted = outcome.certificate and outcome.certificate.is_of_doubted
    return outcome.best.doubted_s if outcome.best and is_doubted else None


def _rank(outcome: Outcome) -> tuple[float, int]:
    """Return the compared value; without a plan, infinity and the broken rules."""
    miss, takes_s = outcome.near_miss, _doubted_s(outcome) or _step_s(outcome)
    return takes_s or math.inf, len(miss.broken_rules) if miss else 0
