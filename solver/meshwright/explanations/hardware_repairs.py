"""Repairs that buy hardware: machines, larger GPUs, or a host to offload to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial

from pydantic import ValidationError

from meshwright import catalog
from meshwright.explanations.changed_spec import (
    with_count,
    with_memory,
    with_topology,
)
from meshwright.explanations.conflict import HasPlan
from meshwright.explanations.repairs import Solve, unpriced_repair
from meshwright.frameworks.base.registry import framework_of
from meshwright.loading.load import load_gpu
from meshwright.results.explanation import Repair
from meshwright.spec.gpu import Gpu
from meshwright.spec.host import Host
from meshwright.spec.spec import Spec

TIMES = (2, 4, 8, 16)
"""Multiples of the cluster's machines that are tried."""

MOST_COUNTED = 32
"""Largest number of machines below which every number is tried."""

HOST_GIB = 4096.0
HOST_GB_S = 200.0
"""Memory of the host that is assumed where the spec names none: more than any plan
offloads, at the bandwidth of eight channels of DDR4-3200 (JEDEC JESD79-4)."""


def hardware_repairs(
    spec: Spec, needed_gib: float | None, solve: Solve, has_plan: HasPlan
) -> Iterator[Repair]:
    """Yield the repairs by machines, larger GPUs or a host that allow a plan.

    `needed_gib` is what the plan that comes closest needs on its fullest GPU.
    """
    if spec.cluster.parts:
        return
    yield from _machine_repair(spec, solve, has_plan)
    yield from _larger_gpu_repair(spec, solve, has_plan)
    yield from _memory_repair(spec, needed_gib, solve)
    yield from _host_repair(spec, solve, has_plan)


def _machine_repair(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the repair that adds the fewest machines, if more of them allow a plan.

    Multiples of the machines are tried first; where the first that is enough is small,
    every number below it is tried too.
    """
    growth = _machine_growth(spec) or _gpu_growth(spec)
    if growth is None:
        return
    field, now, at = growth

    def is_enough(count: int) -> bool:
        try:
            return has_plan(at(count))
        except ValidationError:
            return False  # Hosts do not divide that many GPUs.

    enough = next(filter(is_enough, (now * times for times in TIMES)), None)
    if enough is None:
        return
    is_counted = enough <= MOST_COUNTED
    if is_counted:
        enough = next(filter(is_enough, range(now + 1, enough)), enough)
    larger = at(enough)
    best = solve(larger).best
    if best is not None:
        gpus = f"{larger.cluster.gpus:,} GPUs of this kind"
        note = f"needs at least {gpus}" if is_counted else gpus
        yield unpriced_repair([f"{field}: {now} -> {enough}"], best, "hardware", note)


Growth = tuple[str, int, Callable[[int], Spec]]
"""A field that counts hardware, its value now, and the spec at any other value."""


def _machine_growth(spec: Spec) -> Growth | None:
    """Return how to add machines to a cluster with a network between machines."""
    if spec.cluster.topology.scale_out is None:
        return None
    return "cluster.count", spec.cluster.count, partial(with_count, spec)


def _gpu_growth(spec: Spec) -> Growth | None:
    """Return how to add GPUs to a single machine."""
    topology = spec.cluster.topology
    if topology.nodes or not spec.cluster.is_tree:
        return None
    last = topology.levels[-1]

    def at(size: int) -> Spec:
        levels = (*topology.levels[:-1], last.model_copy(update={"size": size}))
        return with_topology(spec, topology.model_copy(update={"levels": levels}))

    index = len(topology.levels) - 1
    return f"cluster.topology.levels[{index}].size", last.size, at


def _larger_gpu_repair(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the smallest bundled GPU with more memory, first of the same family."""
    present = spec.cluster.topology.gpu
    if spec.limits.memory_gib is not None:
        return
    for gpu in _larger_than(present):
        if not set(spec.training.precisions) <= set(gpu.peak_tflops.known):
            continue
        topology = spec.cluster.topology.model_copy(update={"gpu": gpu})
        changed = with_topology(spec, topology)
        if has_plan(changed) and (best := solve(changed).best) is not None:
            edit = f"cluster.topology.gpu: {present.name} -> {gpu.name}"
            note = f"{gpu.memory_gib:.0f} GiB of memory, on the same links"
            yield unpriced_repair([edit], best, "hardware", note)
            return


def _larger_than(present: Gpu) -> Iterator[Gpu]:
    """Yield the bundled GPUs with more memory, those of the same family first."""
    names = catalog.names("topologies/gpus")
    family = present.name.partition("-")[0]
    relatives = [name for name in names if name.partition("-")[0] == family]
    for group in (relatives, [name for name in names if name not in relatives]):
        known = [_bundled(name) for name in group]
        larger = [gpu for gpu in known if gpu.memory_gib > present.memory_gib]
        yield from sorted(larger, key=lambda gpu: gpu.memory_gib)


@cache
def _bundled(name: str) -> Gpu:
    return load_gpu("topologies/gpus", name)


def _memory_repair(
    spec: Spec, needed_gib: float | None, solve: Solve
) -> Iterator[Repair]:
    """Yield the repair that gives GPUs the memory that the closest plan needs."""
    if needed_gib is None or needed_gib <= spec.usable_gib:
        return
    enough_gib = math.ceil(needed_gib * 100) / 100
    best = solve(with_memory(spec, enough_gib)).best
    if best is not None:
        edit = f"limits.memory_gib: {spec.usable_gib:.2f} -> {enough_gib}"
        yield unpriced_repair([edit], best, "hardware", "usable memory of a GPU")


def _host_repair(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the repair that adds a host to offload to, where the spec names none."""
    topology = spec.cluster.topology
    pcie_gb_s = topology.gpu.pcie_gb_s
    can_offload = framework_of(spec).offloads and spec.training.offload_to == "cpu"
    if topology.host is not None or pcie_gb_s is None or not can_offload:
        return

    def with_host(gib: float) -> Spec:
        host = Host(memory_gib=gib, pcie_gb_s=pcie_gb_s, memory_gb_s=HOST_GB_S)
        return with_topology(spec, topology.model_copy(update={"host": host}))

    changed = with_host(HOST_GIB)
    if not has_plan(changed) or (best := solve(changed).best) is None:
        return
    fullest_gib = max(stage.host_gib for stage in best.stages)
    gib = fullest_gib * changed.cluster.gpus_per_host / (1 - spec.limits.memory_margin)
    enough_gib = math.ceil(gib) + 1
    best = solve(with_host(enough_gib)).best
    if best is not None:
        host = (
            f"{{memory_gib: {enough_gib}, pcie_gb_s: {pcie_gb_s:g}, "
            f"memory_gb_s: {HOST_GB_S:g}}}"
        )
        note = f"offloads {best.plan.offload}; the bandwidths are assumed"
        yield unpriced_repair(
            [f"cluster.topology.host: null -> {host}"], best, "hardware", note
        )
