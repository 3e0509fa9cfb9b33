"""The `cluster` section: a topology, and how many of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import combinations
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from meshwright.reading.messages import FOLLOWS
from meshwright.spec.base import Count, Problem, SpecModel, refuse
from meshwright.spec.cluster_parts import (
    Part,
    broken_parts,
    common_topology,
    topology_of_part,
)
from meshwright.spec.host_graph import HostGraph, graph_of_levels, with_switch_above
from meshwright.spec.host_groups import Hosts, broken_hosts, hosts_of, split_levels
from meshwright.spec.links import NEEDS_NICS, Level, ScaleOut
from meshwright.spec.override import Override, broken_overrides
from meshwright.spec.topology import Topology

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
        """Return what parts have in common, where there are parts."""
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
