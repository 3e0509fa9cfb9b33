"""Clusters of unlike parts, such as 16 A100 and 8 H100, as topologies of equal GPUs.

A part is a number of copies of a machine that is given by levels. To plan over several
parts, all are cut into hosts of equally many GPUs, the most that divide the machine of
every part, and the hosts are joined by one level. Inside a host a GPU has the bandwidth
of the narrowest level of its machine; across hosts, that of the narrowest level on the
way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from meshwright.reading.document import FieldPath
from meshwright.spec.base import Count, Problem, SpecModel, shortened
from meshwright.spec.gpu import PRECISIONS, Gpu, PeakTflops
from meshwright.spec.links import Level, ScaleOut, effective_gb_s
from meshwright.spec.topology import Topology

MOST_PARTS = 3


class Part(SpecModel):
    """Copies of one machine in a cluster of unlike ones."""

    topology: Topology
    count: Count = Field(1, description="Copies of the topology.")

    @property
    def inner(self) -> tuple[Level, ...]:
        """Return the levels of the machine."""
        return self.topology.levels

    @property
    def gpus(self) -> int:
        """Return how many GPUs the part has."""
        return self.gpus_per_machine * self.count

    @property
    def gpus_per_machine(self) -> int:
        """Return how many GPUs each of its machines has."""
        return math.prod(level.size for level in self.inner)


class Rates(NamedTuple):
    """Bandwidth and latency of one GPU."""

    gb_s: float
    """That of a link of the usual share, see `spec.links.effective_gb_s`."""
    latency_us: float

    def worse(self, other: Rates) -> Rates:
        """Return the lower bandwidth and the higher latency of two."""
        latency_us = max(self.latency_us, other.latency_us)
        return Rates(min(self.gb_s, other.gb_s), latency_us)


def host_gpus(parts: Sequence[Part]) -> int:
    """Return the GPUs of a host, which are equally many in all parts."""
    return math.gcd(*(part.gpus_per_machine for part in parts))


def common_topology(parts: Sequence[Part], join: ScaleOut) -> Topology:
    """Return all parts as one topology, with the least GPU and the least links."""
    inside = _worst([_inside(part) for part in parts])
    across = _worst([_across(part, join) for part in parts])
    gpu = _least_gpu([part.topology.gpu for part in parts])
    name = " + ".join(f"{part.count} x {part.topology.name}" for part in parts)
    return _topology(name, gpu, parts, inside, across.worse(_joined(parts, join)), join)


def topology_of_part(part: Part, parts: Sequence[Part], join: ScaleOut) -> Topology:
    """Return a topology as large as all parts, in which all GPUs are those of one."""
    topology = part.topology
    return _topology(
        topology.name, topology.gpu, parts, _inside(part), _across(part, join), join
    )


def broken_parts(parts: Sequence[Part]) -> Iterable[Problem]:
    """Yield what prevents the parts from being joined."""
    if not 2 <= len(parts) <= MOST_PARTS:
        sentence = f"given; accepted: 2 to {MOST_PARTS}"
        yield Problem((), len(parts), sentence)
    for index, part in enumerate(parts):
        path: FieldPath = (index,)
        if part.topology.nodes:
            sentence = "is a graph of nodes; accepted in parts: machines of levels"
            yield Problem(path, part.topology.name, sentence)
        if part.count > 1 and part.topology.scale_out is None:
            sentence = "copies, but the machine has no scale_out to join them"
            yield Problem((*path, "count"), part.count, sentence)


def _topology(
    name: str,
    gpu: Gpu,
    parts: Sequence[Part],
    inside: Rates,
    across: Rates,
    join: ScaleOut,
) -> Topology:
    size = host_gpus(parts)
    levels = [
        Level(name=level, size=count, gb_s=rates.gb_s, latency_us=rates.latency_us)
        for level, count, rates in (
            ("host", size, inside),
            (join.name, sum(part.gpus for part in parts) // size, across),
        )
    ]
    return Topology(name=shortened(name), gpu=gpu, levels=tuple(levels))


def _inside(part: Part) -> Rates:
    """Return the rates of a GPU inside its machine."""
    return _narrowest(part.inner, 1)


def _across(part: Part, join: ScaleOut) -> Rates:
    """Return the rates of a GPU between the machines of its part.

    A part of one machine has no such links; the join stands in for them.
    """
    out = part.topology.scale_out
    if part.count == 1 or out is None:
        return _narrowest([join], part.gpus_per_machine)
    return _narrowest([out], part.gpus_per_machine)


def _joined(parts: Sequence[Part], join: ScaleOut) -> Rates:
    return _worst([_narrowest([join], part.gpus_per_machine) for part in parts])


def _narrowest(levels: Sequence[ScaleOut], below: int) -> Rates:
    """Return the least bandwidth of a GPU on its way up, and the sum of latencies."""
    rates = []
    for level in levels:
        rates.append(effective_gb_s(level.gb_s_per_gpu(below), level.bus_share))
        below *= level.size if isinstance(level, Level) else 1
    return Rates(min(rates), math.fsum(level.latency_us for level in levels))


def _worst(every: Sequence[Rates]) -> Rates:
    result = every[0]
    for rates in every[1:]:
        result = result.worse(rates)
    return result


def _least_gpu(gpus: Sequence[Gpu]) -> Gpu:
    """Return a GPU with the least of every number, and peaks that all GPUs have."""
    peaks: dict[str, Any] = {}
    for precision in PRECISIONS:
        known = [getattr(gpu.peak_tflops, precision) for gpu in gpus]
        reached = zip(known, gpus, strict=True)
        peaks[precision] = (
            None
            if None in known
            else min(peak * gpu.clock_share for peak, gpu in reached)
        )
    least = {
        name: min(getattr(gpu, name) for gpu in gpus)
        for name in ("memory_gib", "memory_gb_s", "matmul_share", "matmul_share_fp8")
    }
    names = dict.fromkeys(gpu.name for gpu in gpus)
    name = names.popitem()[0] if len(names) == 1 else "least of " + ", ".join(names)
    return Gpu(name=shortened(name), peak_tflops=PeakTflops(**peaks), **least)
