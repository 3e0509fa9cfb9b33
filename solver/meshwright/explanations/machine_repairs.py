"""The repair that adds machines: more hosts of the kind that the cluster has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from pydantic import ValidationError

from meshwright.explanations.changed_spec import (
    with_count,
    with_scale_out,
    with_topology,
)
from meshwright.explanations.conflict import HasPlan
from meshwright.explanations.repairs import Solve, unpriced_repair
from meshwright.results.explanation import Repair
from meshwright.spec.spec import Spec
from meshwright.spec.topology import ScaleOut

TIMES = (2, 4, 8, 16)
"""Multiples of the cluster's machines that are tried."""

MOST_COUNTED = 32
"""Largest number of machines below which every number is tried."""

NIC = ScaleOut(name="nic", gb_s=12.5, latency_us=2.5, uplink="shared")
"""What joins machines that have no network: one adapter of 100 Gbit/s on each host,
with the latency of `topologies/a100-pod-100g.yaml`."""


class _Growth(NamedTuple):
    """A field that counts machines, with the spec at any other count."""

    field: str
    now: int
    at: Callable[[int], Spec]
    beside: tuple[str, ...] = ()
    """Edits that more machines need beside their count."""
    note: str = ""


def machine_repair(spec: Spec, solve: Solve, has_plan: HasPlan) -> Iterator[Repair]:
    """Yield the repair that adds the fewest machines, if more of them allow a plan.

    Multiples of the machines are tried first; where the first that is enough is small,
    every number below it is tried too.
    """
    growth = _growth(spec)
    if growth is None:
        return

    def is_enough(count: int) -> bool:
        try:
            return has_plan(growth.at(count))
        except ValidationError:
            return False  # Hosts do not divide that many GPUs.

    now = growth.now
    enough = next(filter(is_enough, (now * times for times in TIMES)), None)
    if enough is None:
        return
    is_counted = enough <= MOST_COUNTED
    if is_counted:
        enough = next(filter(is_enough, range(now + 1, enough)), enough)
    larger = growth.at(enough)
    best = solve(larger).best
    if best is not None:
        gpus = f"{larger.cluster.gpus:,} GPUs of this kind"
        note = f"needs at least {gpus}" if is_counted else gpus
        edits = (*growth.beside, f"{growth.field}: {now} -> {enough}")
        yield unpriced_repair(edits, best, "hardware", note + growth.note)


def _growth(spec: Spec) -> _Growth | None:
    """Return how to add hosts to a cluster; None where no field counts them.

    No host gets more GPUs than it has.
    """
    cluster, topology = spec.cluster, spec.cluster.topology
    if topology.scale_out is not None:
        return _Growth("cluster.count", cluster.count, partial(with_count, spec))
    if topology.nodes or not cluster.is_tree:
        return None
    if cluster.gpus > cluster.gpus_per_host:
        return _level_growth(spec)
    nic = f"{{name: {NIC.name}, gb_s: {NIC.gb_s:g}, latency_us: {NIC.latency_us:g}, "
    scale_out = f"cluster.topology.scale_out: null -> {nic}uplink: {NIC.uplink}}}"
    return _Growth(
        "cluster.count",
        1,
        partial(with_scale_out, spec, NIC),
        (scale_out,),
        "; a 100 Gbit/s adapter on each host is assumed",
    )


def _level_growth(spec: Spec) -> _Growth:
    """Return how to add hosts to the outermost level of a topology."""
    topology = spec.cluster.topology
    last = topology.levels[-1]

    def at(size: int) -> Spec:
        levels = (*topology.levels[:-1], last.model_copy(update={"size": size}))
        return with_topology(spec, topology.model_copy(update={"levels": levels}))

    index = len(topology.levels) - 1
    return _Growth(f"cluster.topology.levels[{index}].size", last.size, at)
