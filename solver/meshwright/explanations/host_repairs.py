"""Repairs by memory of hosts: a host to offload to, or a larger one."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.explanations.changed_spec import with_topology
from meshwright.explanations.conflict import HasPlan
from meshwright.explanations.repairs import Solve, unpriced_repair
from meshwright.frameworks.base.registry import framework_of
from meshwright.results.explanation import Repair
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Host

SIZES_GIB = (
    *(32, 64, 96, 128, 192, 256, 384, 512, 768),
    *(1024, 1536, 2048, 3072, 4096),
)
"""Memory that hosts are sold with: modules of 16 to 128 GB, 2 to 32 of them."""

HOST_GB_S = 200.0
"""Bandwidth of the host that is assumed where the spec names none: eight channels of
DDR4-3200 (JEDEC JESD79-4)."""


def host_repair(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the host with the least memory that allows a plan, if any does."""
    can_offload = framework_of(spec).offloads and spec.training.offload_to == "cpu"
    if not can_offload:
        return
    if spec.cluster.topology.host is None:
        yield from _added_host(spec, solve, has_plan)
    else:
        yield from _larger_host(spec, spec.cluster.topology.host, solve, has_plan)


def _added_host(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the host to offload to, where the spec names none."""
    pcie_gb_s = spec.cluster.topology.gpu.pcie_gb_s
    if pcie_gb_s is None:
        return
    largest = Host(memory_gib=SIZES_GIB[-1], pcie_gb_s=pcie_gb_s, memory_gb_s=HOST_GB_S)
    found = _smallest_host(spec, largest, SIZES_GIB, solve, has_plan)
    if found is not None:
        host, best = found
        fields = (
            f"{{memory_gib: {host.memory_gib:g}, pcie_gb_s: {pcie_gb_s:g}, "
            f"memory_gb_s: {HOST_GB_S:g}}}"
        )
        note = f"offloads {best.plan.offload}; the bandwidths are assumed"
        edit = f"cluster.topology.host: null -> {fields}"
        yield unpriced_repair([edit], best, "hardware", note)


def _larger_host(
    spec: Spec, host: Host, solve: Solve, has_plan: HasPlan
) -> Iterator[Repair]:
    """Yield the host with more memory that allows a plan."""
    sizes = tuple(gib for gib in SIZES_GIB if gib > host.memory_gib)
    found = _smallest_host(spec, host, sizes, solve, has_plan) if sizes else None
    if found is not None:
        larger, best = found
        sizes_text = f"{host.memory_gib:g} -> {larger.memory_gib:g}"
        edit = f"cluster.topology.host.memory_gib: {sizes_text}"
        note = f"offloads {best.plan.offload}"
        yield unpriced_repair([edit], best, "hardware", note)


def _smallest_host(
    spec: Spec, host: Host, sizes: tuple[int, ...], solve: Solve, has_plan: HasPlan
) -> tuple[Host, PricedPlan] | None:
    """Return the host with the least memory of some sizes that allows a plan."""

    def sized(gib: int) -> Host:
        return host.model_copy(update={"memory_gib": float(gib)})

    def on(one: Host) -> Spec:
        topology = spec.cluster.topology.model_copy(update={"host": one})
        return with_topology(spec, topology)

    if not has_plan(on(sized(sizes[-1]))):
        return None
    smallest = next(filter(lambda gib: has_plan(on(sized(gib))), sizes))
    best = solve(on(sized(smallest))).best
    return None if best is None else (sized(smallest), best)
