"""More of anything never hurts: neither a plan nor the optimum.

Links may not be limited to a share of the step: where everything else is faster the
step is shorter, and the same traffic a larger share of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from meshwright.check.check import broken_rules, check
from meshwright.cost.profile import Profile
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec
from tests.laws.asked import Answer, ask, question, training
from tests.laws.law import Checks, Data, Law, plain
from tests.laws.pins import some
from tests.laws.specs import every_data

MORE = {
    "memory_gib", "memory_gb_s", "gb_s", "pcie_gb_s", "nvme_gb_s", "nvme_gib",
    "fp8", "bf16", "fp16", "fp32",
}  # fmt: skip
LESS = {"latency_us"}

Leaf = tuple[str | int, ...]

FLOAT = 1e-12


def more_never_hurts(data: Data, choice: Random) -> Checks:
    """Better some numbers of a cluster, each alone, and then all of them."""
    data = plain(data)
    data.get("limits", {}).pop("max_link_utilisation", None)
    before = ask(data, top=1 if "inference" in data else 3)
    leaves = list(_leaves(data["cluster"], ("cluster",)))
    each = [[leaf] for leaf in some(leaves, choice)]
    for chosen in [*each, leaves]:
        factor = choice.choice([1.01, 1.3, 2.0, 7.0])
        better = _bettered(data, chosen, factor)
        told = f"{factor} x {', '.join('.'.join(map(str, one)) for one in chosen)}"
        yield from _plans_no_slower(before, data, better, told)
        after = ask(better)
        moved = f"{told}: {after.step_s!r} s, before {before.step_s!r}"
        yield after.is_no_slower(before), moved
    if "training" in data:
        yield from _wider(data, before)
        more = plain(data)
        known = more["training"]["precision"] = _precisions(data, choice)
        after = ask(more)
        told = f"one of {known}: {after.step_s!r} s, before {before.step_s!r}"
        yield after.is_no_slower(before), told


def _leaves(value: Any, path: Leaf) -> Iterator[Leaf]:
    """Yield the paths of all numbers of which more, or less, is better."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in pairs:
        if isinstance(one, dict | list):
            yield from _leaves(one, (*path, key))
        elif key in MORE | LESS and one is not None:
            yield (*path, key)


def _bettered(data: Data, leaves: list[Leaf], factor: float) -> Data:
    better = plain(data)
    for *path, last in leaves:
        found: Any = better
        for step in path:
            found = found[step]
        found[last] = found[last] / factor if last in LESS else found[last] * factor
    return better


def _plans_no_slower(before: Answer, data: Data, better: Data, told: str) -> Checks:
    """Hold plans on the better cluster against themselves."""
    spec = question(better)
    if not isinstance(spec, Spec) or spec.cluster.parts:
        return
    job = Profile().job(spec)
    for priced in (before.best, *before.others):
        if isinstance(priced, PricedPlan):
            found = check(job, priced.plan)
            moved = f"plan, {told}: {found.step_s!r} s for {priced.step_s!r}"
            parts = f"{found.time_parts} for {priced.time_parts}, {priced.plan}"
            yield found.step_s <= priced.step_s * (1 + FLOAT), f"{moved}: {parts}"
            broken = broken_rules(job, priced.plan)
            yield not broken, f"plan, {told}: {broken} broken by {priced.plan}"


def _wider(data: Data, before: Answer) -> Checks:
    """Give the best plan twice the data-parallel ranks, for half the micro-batches.

    Beside the traffic that ends the step it takes no longer and holds no more. More
    shards of weights mean longer gathers: below ZeRO-2 all else shrinks.
    """
    best, levels = before.best, data["cluster"].get("topology", {}).get("levels")
    is_tree = bool(levels) and "count" not in data["cluster"]
    if not isinstance(best, PricedPlan) or not is_tree or best.plan.microbatches % 2:
        return
    wide, plan = plain(data), best.plan
    wide["cluster"]["topology"]["levels"][-1]["size"] *= 2
    axis = "dp_shard" if plan.zero else "dp_replicate"
    fields = {
        axis: 2 * getattr(plan, axis),
        "microbatches": plan.microbatches // 2,
        "mesh": plan.mesh | {axis: (*plan.mesh[axis][:-1], 2 * plan.mesh[axis][-1])},
    }
    found = check(Profile().job(training(wide)), plan.model_copy(update=fields))
    told = f"twice the GPUs: {found} for {best}"
    yield found.peak_gib <= best.peak_gib * (1 + FLOAT), told
    if plan.zero < 2:
        yield _without_dp_s(found) <= _without_dp_s(best) * (1 + FLOAT), told


def _without_dp_s(priced: PricedPlan) -> float:
    """Return the step time without the traffic that ends it."""
    return priced.step_s - priced.time_parts["dp"]


def _precisions(data: Data, choice: Random) -> list[str]:
    """Return the precisions of a spec and one more that its GPU has."""
    found = data["training"].get("precision", "bf16")
    known = found if isinstance(found, list) else [found]
    gpu = data["cluster"].get("topology", {}).get("gpu", {})
    return [*known, *some(sorted(set(gpu.get("peak_tflops", {})) - set(known)), choice)]


LAW = Law(
    "more",
    "more of anything never hurts, neither a plan nor the optimum",
    every_data(),
    more_never_hurts,
    tested=8,
)
