"""Repairs by memory of GPUs: the next larger GPU, or less safety on the present one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from meshwright import catalog
from meshwright.explanations.changed_spec import with_memory, with_topology
from meshwright.explanations.conflict import HasPlan
from meshwright.explanations.repairs import Solve, unpriced_repair
from meshwright.loading.load import load_gpu
from meshwright.results.explanation import Repair
from meshwright.spec.base import MOST_RISK
from meshwright.spec.gpu import Gpu
from meshwright.spec.spec import Spec, with_risk


def larger_gpu_repair(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the smallest bundled GPU with more memory, first of the same family.

    It is of the same form: no card goes on a board of NVLink, and no board in a slot.
    """
    present = spec.cluster.topology.gpu
    if spec.limits.memory_gib is not None:
        return
    for gpu in larger_gpus(present):
        if not set(spec.training.precisions) <= set(gpu.peak_tflops.known):
            continue
        topology = spec.cluster.topology.model_copy(update={"gpu": gpu})
        changed = with_topology(spec, topology)
        if has_plan(changed) and (best := solve(changed).best) is not None:
            edit = f"cluster.topology.gpu: {present.name} -> {gpu.name}"
            note = f"{gpu.memory_gib:.0f} GiB of memory, on the same links"
            yield unpriced_repair([edit], best, "hardware", note)
            return


def larger_gpus(present: Gpu) -> Iterator[Gpu]:
    """Yield the bundled GPUs with more memory that fit the same socket.

    Those of the same family come first, then those that are not slower, each the
    smallest first.
    """
    names = catalog.names("topologies/gpus")
    if present.name in names:
        names = [name for name in names if form(name) == form(present.name)]
    family = present.name.partition("-")[0]

    def rank(gpu: Gpu) -> tuple[bool, bool, float]:
        is_relative = gpu.name.partition("-")[0] == family
        return not is_relative, is_slower(gpu, present), gpu.memory_gib

    others = [_bundled(name) for name in names if name != present.name]
    larger = [gpu for gpu in others if gpu.memory_gib > present.memory_gib]
    yield from sorted(larger, key=rank)


def is_slower(gpu: Gpu, than: Gpu) -> bool:
    """Return whether a GPU has a lower peak in a precision that both have."""
    own, other = dict(gpu.peak_tflops), dict(than.peak_tflops)
    return any(own[name] < other[name] for name in own if own[name] and other[name])


def form(name: str) -> str:
    """Return how a bundled GPU is built into a host: as a card, or on which board."""
    if "-sxm" in name:
        return "sxm"
    if name.startswith("mi"):
        return "oam"
    return "superchip" if name.startswith("gb") else "card"


@cache
def _bundled(name: str) -> Gpu:
    return load_gpu("topologies/gpus", name)


def less_safety_repair(
    spec: Spec, needed_gib: float | None, solve: Solve
) -> Iterator[Repair]:
    """Yield the risk, or the limit, at which the closest plan fits, if it may."""
    if needed_gib is None or needed_gib <= spec.usable_gib:
        return
    fits = spec.fit_probability(needed_gib)
    note = f"the plan that comes closest fits with probability {fits:.2f}"
    if spec.limits.is_by_risk:
        oom_risk = math.ceil((1 - fits) * 100) / 100
        if oom_risk > MOST_RISK:
            return
        changed = with_risk(spec, oom_risk)
        edit = f"limits.oom_risk: {spec.limits.risk:g} -> {oom_risk:g}"
    else:
        enough_gib = math.ceil(needed_gib * 100) / 100
        if enough_gib > spec.cluster.topology.gpu.memory_gib:
            return
        changed = with_memory(spec, enough_gib)
        edit = f"limits.memory_gib: {spec.usable_gib:.2f} -> {enough_gib}"
    best = solve(changed).best
    if best is not None:
        yield unpriced_repair([edit], best, "safety", note)
