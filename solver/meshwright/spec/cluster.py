"""The `cluster` section: a topology, how many of it, and what its GPUs cost.

Clusters of unlike parts, such as 16 A100 and 8 H100, are topologies of equal GPUs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from meshwright.reading.document import FOLLOWS, FieldPath
from meshwright.spec.base import Count, Problem, SpecModel, refuse, shortened
from meshwright.spec.gpu import PRECISIONS, Gpu, PeakTflops
from meshwright.spec.hosts import (
    HostGraph,
    Hosts,
    broken_hosts,
    graph_of_levels,
    hosts_of,
    split_levels,
    with_switch_above,
)
from meshwright.spec.topology import (
    NEEDS_NICS,
    Level,
    Override,
    ScaleOut,
    Topology,
    broken_overrides,
    effective_gb_s,
)
from meshwright.spec.units import DAY_S, HOUR_S

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
    """Bandwidth of a link of the usual share, see `spec.topology.effective_gb_s`."""
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
    """Yield the reasons why the parts cannot be joined."""
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


MAX_GPUS = 1_000_000


class Cluster(SpecModel):
    """A topology, how many of it, and what of it is broken; or unlike parts, joined.

    The topology of parts is what they have in common, see `parts.alike`.
    """

    parts: tuple[Part, ...] = Field((), description="Unlike machines in one job.")
    join: ScaleOut | None = Field(None, description="The level that joins the parts.")
    topology: Topology = Field(default=None, validate_default=True)
    count: Count = Field(1, description="Copies of the topology, below its scale_out.")
    overrides: tuple[Override, ...] = Field(
        (), description="Links that are slow or down, GPUs and hosts that are down."
    )

    @field_validator("parts")
    @classmethod
    def _check_parts_alone(cls, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        refuse(broken_parts(parts) if parts else ())
        return parts

    @field_validator("join")
    @classmethod
    def _check_join(cls, join: ScaleOut | None) -> ScaleOut | None:
        if join is not None and join.uplink == "per_nic":
            refuse([Problem(("uplink",), join.uplink, NEEDS_NICS)])
        return join

    @field_validator("topology", mode="before")
    @classmethod
    def _common(cls, value: Any, info: ValidationInfo) -> Any:
        """Return the topology that the parts have in common, where there are parts."""
        if "parts" not in info.data or "join" not in info.data:
            raise PydanticCustomError(FOLLOWS, "parts are wrong")
        parts, join = info.data["parts"], info.data["join"]
        if not parts and value is None:
            raise PydanticKnownError("missing")
        if not parts:
            return value
        if join is None:
            raise ValueError("expected join beside parts: the level that joins them")
        return common_topology(parts, join)

    @model_validator(mode="after")
    def _check_parts(self) -> Cluster:
        refuse(self._broken_parts())
        return self

    def _broken_parts(self) -> Iterable[Problem]:
        if self.parts and self.overrides:
            sentence = "given beside parts; write them into the part's topology"
            yield Problem(("overrides",), len(self.overrides), sentence)
        if self.join is not None and not self.parts:
            sentence = "joins parts, and none are given"
            yield Problem(("join", "name"), self.join.name, sentence)
        if self.parts and self.count > 1:
            sentence = "given beside parts; each has its own; accepted: 1"
            yield Problem(("count",), self.count, sentence)

    @model_validator(mode="after")
    def _check_count(self) -> Cluster:
        name = self.topology.name
        if self.count > 1 and self.topology.scale_out is None:
            sentence = (
                f"copies, but {name!r} has no scale_out to join them; accepted: 1"
            )
            refuse([Problem(("count",), self.count, sentence)])
        if self._rated_gpus > MAX_GPUS:
            sentence = f"make {self._rated_gpus:,} GPUs; accepted: up to {MAX_GPUS:,}"
            sizes = [level.size for level in self.levels]
            path = ("count",) if self.count > 1 else ("topology", "levels")
            refuse([Problem(path, sizes, sentence)])
        refuse(self._broken_host())
        return self

    def _broken_host(self) -> Iterable[Problem]:
        host = self.topology.host
        if host is not None and self._rated_gpus % self.gpus_per_host:
            sentence = f"does not divide the {self._rated_gpus:,} GPUs of the cluster"
            path = ("topology", "host", "gpus")
            yield Problem(path, self.gpus_per_host, sentence)

    @model_validator(mode="after")
    def _check_overrides(self) -> Cluster:
        if not self.overrides:
            return self
        split = split_levels(self.levels, self.gpus_per_host)
        if not self.topology.nodes and split is None:
            sentence = "given, but no levels make up a host; set host.gpus"
            refuse([Problem(("overrides",), len(self.overrides), sentence)])
        machine, outer = self.rated_host
        hosts = math.prod(level.size for level in outer)
        problems = broken_overrides(self.overrides, machine.nodes, machine.links, hosts)
        refuse(problems)
        refuse(broken_hosts(self.hosts, self.overrides))
        return self

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Return the names of its kinds of GPUs, each once."""
        topologies = [part.topology for part in self.parts] or [self.topology]
        return (*dict.fromkeys(filter(None, (own.gpu.name for own in topologies))),)

    def part_choices(self) -> Iterator[tuple[tuple[Part, ...], Cluster]]:
        """Yield each choice of parts for a plan, with its cluster; single parts first.

        A cluster without parts is its only choice.
        """
        if not self.parts:
            yield (), self
        for part in self.parts:
            yield (part,), Cluster(topology=part.topology, count=part.count)
        for size in range(2, len(self.parts) + 1):
            for chosen in combinations(self.parts, size):
                yield chosen, Cluster(parts=chosen, join=self.join)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return the levels, innermost first, the scale-out level last.

        For a topology of nodes they are the levels above the nodes.
        """
        top = self.topology.scale_out
        if self.count == 1 or top is None:
            return self.topology.levels
        return (*self.topology.levels, Level(**top.model_dump(), size=self.count))

    @property
    def is_tree(self) -> bool:
        """Return whether the cluster is a tree of levels, with nothing overridden."""
        return not self.topology.nodes and not self.overrides

    @property
    def rated_host(self) -> tuple[HostGraph, tuple[Level, ...]]:
        """Return one host without overrides, and the levels above it."""
        topology = self.topology
        if topology.nodes:
            inside, outer = HostGraph(topology.nodes, topology.links), self.levels
        else:
            split = split_levels(self.levels, self.gpus_per_host)
            levels, outer = split or (self.levels, ())
            inside = graph_of_levels(levels, outer[0] if outer else None)
        return with_switch_above(inside, outer[0] if outer else None), outer

    @cached_property
    def hosts(self) -> Hosts:
        """Return the hosts that a plan may use, in groups of equal ones."""
        return hosts_of(*self.rated_host, self.overrides)

    @property
    def gpus_per_host(self) -> int:
        """Return the number of GPUs of a host; by default of the innermost level."""
        host, topology = self.topology.host, self.topology
        sizes = Counter(node.host for node in topology.nodes if node.kind == "gpu")
        rated = max(sizes.values()) if sizes else topology.levels[0].size
        return (host.gpus if host else None) or rated

    @property
    def gpus(self) -> int:
        """Return how many GPUs there are to plan on."""
        return math.prod(self.fan_outs)

    @property
    def _rated_gpus(self) -> int:
        gpus = sum(node.kind == "gpu" for node in self.topology.nodes) or 1
        return gpus * math.prod(level.size for level in self.levels)

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """Return the size of each level; for nodes, GPUs per host and number of hosts.

        Nodes whose hosts have unequal numbers of GPUs count as one level.
        """
        if self.is_tree:
            return tuple(level.size for level in self.levels)
        outer = tuple(level.size for level in self.hosts.outer)
        gpus = [n for n in self.hosts.groups[0].machine.nodes if n.kind == "gpu"]
        sizes = Counter(node.host for node in gpus)
        if len(set(sizes.values())) == 1 and len(sizes) > 1:
            return (len(gpus) // len(sizes), len(sizes))
        return (len(gpus), *outer)

    @property
    def node_levels(self) -> int:
        """Return how many of its levels lie inside a node.

        That is a host, or the innermost level where hosts are parts of one, as in racks
        that NVLink joins.
        """
        split = split_levels(self.levels, self.gpus_per_host) if self.is_tree else None
        return len(split[0]) if split else 1

    @property
    def gpus_per_node(self) -> int:
        """Return how many GPUs the fastest links join, in a host or in a rack."""
        return math.prod(self.fan_outs[: self.node_levels])


class StagedCluster(Cluster):
    """A cluster of parts whose pipeline stages each lie on one part.

    Stages go to parts in their order, to each as many as it has of all GPUs.
    """

    order: tuple[Part, ...]
    """The parts, that of the first stages first."""

    @property
    def kinds(self) -> tuple[Topology, ...]:
        """Return, for each part in order, the cluster as if all GPUs were its."""
        assert self.join is not None
        return tuple(
            topology_of_part(part, self.order, self.join) for part in self.order
        )

    def stages_per_part(self, stages: int) -> list[int]:
        """Return how many pipeline stages each part holds, by its share of GPUs."""
        gpus = sum(part.gpus for part in self.order)
        return [stages * part.gpus // gpus for part in self.order]


if TYPE_CHECKING:
    from meshwright.spec.spec import Spec


def usd_per_hour(cluster: Cluster, gpu_hour_price: float | None) -> float | None:
    """Return the price of all GPUs for an hour; None if a price is not known."""
    return _total(cluster, lambda gpu: gpu_hour_price or gpu.hour_usd)


def watts(cluster: Cluster) -> float | None:
    """Return the power of all GPUs at their limit; None if a limit is not known."""
    return _total(cluster, lambda gpu: gpu.power_w)


def per_mtoken(per_hour: float, tokens_per_s: float) -> float:
    """Return an amount per hour as one per million tokens."""
    return per_hour / (tokens_per_s * HOUR_S / 1e6)


def prices_per_mtoken(spec: Spec, tokens_per_s: float) -> dict[str, float]:
    """Return the USD and the kWh of a million tokens, as far as they are known."""
    cluster = spec.cluster
    usd, drawn_w = usd_per_hour(cluster, spec.run.gpu_hour_price), watts(cluster)
    per_hour = {
        "usd_per_mtoken": usd,
        "kwh_per_mtoken": None if drawn_w is None else drawn_w / 1e3,
    }
    return {
        name: per_mtoken(amount, tokens_per_s)
        for name, amount in per_hour.items()
        if amount is not None
    }


def per_token(spec: Spec, tokens_per_s: float) -> dict[str, float]:
    """Return the prices of a million tokens and the days of the run, where known.

    All of them are proportional to the time of a token. Days leave failures out.
    """
    known = prices_per_mtoken(spec, tokens_per_s)
    if spec.run.tokens is not None:
        known["train_days"] = spec.run.tokens / tokens_per_s / DAY_S
    return known


def _total(cluster: Cluster, of: Callable[[Gpu], float | None]) -> float | None:
    """Return the sum of a quantity over all GPUs; None if a GPU lacks it."""
    parts = [(part.gpus, part.topology.gpu) for part in cluster.parts]
    total = 0.0
    for count, gpu in parts or [(cluster.gpus, cluster.topology.gpu)]:
        amount = of(gpu)
        if amount is None:
            return None
        total += count * amount
    return total
