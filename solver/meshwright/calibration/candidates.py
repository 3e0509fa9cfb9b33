"""Plans of a spec that are worth a short run, and those that may be its best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from meshwright.cost.profile import Profile
from meshwright.errors import SpecError
from meshwright.explanations.changed_spec import with_pins
from meshwright.exports.table import export_plan, target_of
from meshwright.plans.plan import Plan
from meshwright.search.options import Options
from meshwright.search.solve import solve
from meshwright.spec.card import card_gib
from meshwright.spec.pins import Pins
from meshwright.spec.spec import Spec

PLANS = 8
"""Plans of each spec, best first, beside the best of every set of techniques."""

MOST_PLANS = 32

OVER = 1.12
"""Memory, as a share of the card, up to which a plan just does not fit."""

EFFORT = 0.25
"""Deterministic seconds for one of these solves; none of them must be proven best."""

VARIED: tuple[dict[str, object], ...] = (
    {"recompute": "none"},
    {"recompute": "full"},
    {"zero": 1},
    {"zero": 3},
    {"micro_batch": 1},
    {"micro_batch": 2},
    {"micro_batch": 4},
    {"tp": 1},
    {"sequence_parallel": True},
)
"""Pins under which plans are found too, where the spec does not decide the field."""


def worth_running(
    spec: Spec, options: Options, say: Callable[[str], None]
) -> list[Plan]:
    """Return plans that fit, likely or just not, without repetition; best first."""
    brief = replace(
        options, top=PLANS, is_brief=True, is_by_kind=True, most_effort=EFFORT
    )
    say("solving, for the best plans of each kind")
    found = list(_plans(spec, brief))
    over = {"memory_gib": OVER * card_gib(spec.cluster.topology.gpu.memory_gib)}
    loose = spec.model_copy(update={"limits": spec.limits.model_copy(update=over)})
    say("solving, for plans that just do not fit")
    found += _plans(loose, brief)
    single = replace(brief, top=1, is_by_kind=False)
    for pins in VARIED:
        if all(getattr(spec.pins, name) is None for name in pins):
            asked = with_pins(loose, Pins.model_validate(pins))
            say("solving, with " + ", ".join(f"{n}={v}" for n, v in pins.items()))
            found += _plans(asked, single)
    return list({plan.model_dump_json(): plan for plan in found}.values())[:MOST_PLANS]


def _plans(spec: Spec, options: Options) -> Iterator[Plan]:
    outcome = solve(spec, options)
    if outcome.best is not None:
        yield outcome.best.plan
    yield from (other.plan for other in outcome.others)
    yield from (kind.best.plan for kind in outcome.by_kind if kind.best is not None)


def launchable(spec: Spec, plans: list[Plan], profile: Profile) -> list[Plan]:
    """Return the plans that can be told to the framework of a spec.

    They are all of them where no files are written for that framework.
    """
    if not is_exported(spec):
        return plans
    known, to = profile.applied_to(spec), target_of(spec.framework)
    return [plan for plan in plans if _is_launchable(known, plan, to)]


def is_exported(spec: Spec) -> bool:
    """Return whether plans of the framework of a spec can be written as files."""
    try:
        target_of(spec.framework)
    except SpecError:
        return False
    return True


def _is_launchable(spec: Spec, plan: Plan, to: str) -> bool:
    try:
        export_plan(spec, plan, to)
    except SpecError:
        return False
    return True


def on_nodes(spec: Spec, nodes: int | None) -> Spec:
    """Return a spec on some of its nodes, with as many sequences a GPU.

    Raises:
        SpecError: the cluster is not made of so many nodes.
    """
    count = spec.cluster.count
    if nodes is None or nodes == count:
        return spec
    if not 1 <= nodes <= count:
        raise SpecError(f"--nodes {nodes}: expected 1 to {count}, the cluster's count")
    batch = max(1, math.ceil(spec.training.global_batch * nodes / count))
    training = spec.training.model_copy(update={"global_batch": batch})
    cluster = spec.cluster.model_copy(update={"count": nodes})
    changed = {"training": training, "cluster": cluster}
    return Spec.model_validate(
        spec.model_copy(update=changed).model_dump(exclude_defaults=True, by_alias=True)
    )
