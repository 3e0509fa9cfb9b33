"""The `cluster` section: a topology, and how many of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from pydantic import model_validator

from meshwright.spec.base import Count, Problem, SpecModel, refuse
from meshwright.spec.hosts import Hosts, broken_hosts, hosts_of, split_levels
from meshwright.spec.links import Level
from meshwright.spec.machine import Machine, joined, machine_of_levels
from meshwright.spec.override import Override, broken_overrides
from meshwright.spec.topology import Topology

MAX_GPUS = 1_000_000


class Cluster(SpecModel):
    """A topology, how many of it, and what of it is broken."""

    topology: Topology
    count: Count = 1
    overrides: tuple[Override, ...] = ()

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
        refuse(broken_overrides(self.overrides, *machine, hosts))
        refuse(broken_hosts(self.hosts, self.overrides))
        return self

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return the levels, innermost first, the scale-out level last.

        Where there are nodes those are the levels above them.
        """
        top = self.topology.scale_out
        if self.count == 1 or top is None:
            return self.topology.levels
        return (*self.topology.levels, Level(**top.model_dump(), size=self.count))

    @property
    def is_tree(self) -> bool:
        """Return whether equal levels are all there is to know."""
        return not self.topology.nodes and not self.overrides

    @property
    def rated_host(self) -> tuple[Machine, tuple[Level, ...]]:
        """Return one host as it should be, linked to what is above, and the levels."""
        topology = self.topology
        if topology.nodes:
            inside, outer = Machine(topology.nodes, topology.links), self.levels
        else:
            split = split_levels(self.levels, self.gpus_per_host)
            levels, outer = split or (self.levels, ())
            inside = machine_of_levels(levels, outer[0] if outer else None)
        return joined(inside, outer[0] if outer else None), outer

    @cached_property
    def hosts(self) -> Hosts:
        """Return the hosts that a plan may use, alike ones together."""
        return hosts_of(*self.rated_host, self.overrides)

    @property
    def gpus_per_host(self) -> int:
        """Return the GPUs that share a host: those of the innermost level if unsaid."""
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
        own = sum(node.kind == "gpu" for node in self.topology.nodes) or 1
        return own * math.prod(level.size for level in self.levels)

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """Return the size of each level; GPUs per host and hosts for nodes.

        Nodes are one level where their hosts hold unequal numbers of GPUs.
        """
        if self.is_tree:
            return tuple(level.size for level in self.levels)
        outer = tuple(level.size for level in self.hosts.outer)
        gpus = [n for n in self.hosts.kinds[0].machine.nodes if n.kind == "gpu"]
        sizes = Counter(node.host for node in gpus)
        if len(set(sizes.values())) == 1 and len(sizes) > 1:
            return (len(gpus) // len(sizes), len(sizes))
        return (len(gpus), *outer)
