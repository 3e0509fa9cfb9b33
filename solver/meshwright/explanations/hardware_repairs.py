"""Repairs that buy something: machines, GPUs with more memory, a host to offload to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial

from pydantic import ValidationError

from meshwright import catalog
from meshwright.explanations.conflict import HasPlan
from meshwright.explanations.fixed import with_memory
from meshwright.explanations.other_clusters import with_count, with_topology
from meshwright.explanations.repairs import Solve, repair
from meshwright.frameworks.base.registry import framework_of
from meshwright.loading.load import load_gpu
from meshwright.results.explanation import Repair
from meshwright.spec.gpu import Gpu
from meshwright.spec.host import Host
from meshwright.spec.spec import Spec

TIMES = (2, 4, 8, 16)
"""How many times the machines of a cluster are tried."""

MOST_COUNTED = 32
"""Machines up to which every number of them is tried."""

HOST_GIB = 4096.0
HOST_GB_S = 200.0
"""Of a host that is only thought of: memory without end in sight, as fast as eight
channels of DDR4-3200 (JEDEC JESD79-4)."""


def bought(
    spec: Spec, needed_gib: float | None, solve: Solve, has_plan: HasPlan
) -> Iterator[Repair]:
    """Yield what more machines, larger GPUs and a host bring, where they help.

    `needed_gib` is what the plan that comes closest holds on its fullest GPU.
    """
    if spec.cluster.parts:
        return
    yield from _more_machines(spec, solve, has_plan)
    yield from _larger_gpu(spec, solve, has_plan)
    yield from _more_memory(spec, needed_gib, solve)
    yield from _a_host(spec, solve, has_plan)


def _more_machines(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the first larger cluster on which there is a plan, or a first double.

    Every number of machines up to that is tried where they are few.
    """
    grown = _by_count(spec) or _by_size(spec)
    if grown is None:
        return
    edit, now, at = grown

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
        yield repair([f"{edit}: {now} -> {enough}"], best, "hardware", note)


Grown = tuple[str, int, Callable[[int], Spec]]


def _by_count(spec: Spec) -> Grown | None:
    """Return how to add machines that a network joins."""
    if spec.cluster.topology.scale_out is None:
        return None
    return "cluster.count", spec.cluster.count, partial(with_count, spec)


def _by_size(spec: Spec) -> Grown | None:
    """Return how to add GPUs to a lone machine."""
    topology = spec.cluster.topology
    if topology.nodes or not spec.cluster.is_tree:
        return None
    last = topology.levels[-1]

    def at(size: int) -> Spec:
        levels = (*topology.levels[:-1], last.model_copy(update={"size": size}))
        return with_topology(spec, topology.model_copy(update={"levels": levels}))

    index = len(topology.levels) - 1
    return f"cluster.topology.levels[{index}].size", last.size, at


def _larger_gpu(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the smallest larger GPU that is bundled, of the same family or of any."""
    own = spec.cluster.topology.gpu
    if spec.limits.memory_gib is not None:
        return
    for gpu in _larger_than(own):
        if not set(spec.training.precisions) <= set(gpu.peak_tflops.known):
            continue
        topology = spec.cluster.topology.model_copy(update={"gpu": gpu})
        changed = with_topology(spec, topology)
        if has_plan(changed) and (best := solve(changed).best) is not None:
            edit = f"cluster.topology.gpu: {own.name} -> {gpu.name}"
            note = f"{gpu.memory_gib:.0f} GiB of memory, on the same links"
            yield repair([edit], best, "hardware", note)
            return


def _larger_than(own: Gpu) -> Iterator[Gpu]:
    """Yield the bundled GPUs with more memory, those of the same family first."""
    names = catalog.names("topologies/gpus")
    family = own.name.partition("-")[0]
    kin = [name for name in names if name.partition("-")[0] == family]
    for group in (kin, [name for name in names if name not in kin]):
        known = [_bundled(name) for name in group]
        larger = [gpu for gpu in known if gpu.memory_gib > own.memory_gib]
        yield from sorted(larger, key=lambda gpu: gpu.memory_gib)


@cache
def _bundled(name: str) -> Gpu:
    return load_gpu("topologies/gpus", name)


def _more_memory(
    spec: Spec, needed_gib: float | None, solve: Solve
) -> Iterator[Repair]:
    """Yield GPUs with as much memory as the plan that comes closest needs."""
    if needed_gib is None or needed_gib <= spec.usable_gib:
        return
    enough_gib = math.ceil(needed_gib * 100) / 100
    best = solve(with_memory(spec, enough_gib)).best
    if best is not None:
        edit = f"limits.memory_gib: {spec.usable_gib:.2f} -> {enough_gib}"
        yield repair([edit], best, "hardware", "usable memory of a GPU")


def _a_host(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield a host to offload to, where the spec names none and it would do."""
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
        yield repair([f"cluster.topology.host: null -> {host}"], best, "hardware", note)
