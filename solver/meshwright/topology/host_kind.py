"""The link loads and latencies of hosts that share one graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.topology.routes import Routes

Floats = NDArray[np.float64]
Pair = tuple[int, int]
"""Two ranks of a host: the sender and the receiver."""


@dataclass(frozen=True, eq=False)
class HostKind:
    """Hosts with the same graph, and the order of ranks on their GPUs."""

    routes: Routes
    name: str = ""
    """Name of the first of the hosts; empty where there is only one host."""
    way_out: str = ""
    """The switch above the host that its NICs reach; empty where there is none."""
    order: tuple[int, ...] = ()
    """Index of the GPU of each rank; empty where ranks follow the list of GPUs."""

    def gpu(self, rank: int) -> int:
        """Return the index of the GPU of a rank."""
        return self.order[rank] if self.order else rank

    @property
    def link_names(self) -> list[str]:
        """Return the name of every link, once per direction."""
        prefix = f"{self.name}." if self.name else ""
        return [
            f"{a if a == self.way_out else prefix + a} -> "
            f"{b if b == self.way_out else prefix + b}"
            for a, b in self.routes.hops
        ]

    @cached_property
    def exits(self) -> Floats:
        """Return seconds per byte on every link if each GPU sends out and receives."""
        shares = np.zeros(len(self.routes.hops))
        for gpu in self.routes.gpus if self.way_out else ():
            shares += self.routes.route(gpu, self.way_out).shares
            shares += self.routes.route(self.way_out, gpu).shares
        return self.routes.seconds(shares)

    @cached_property
    def exit_us(self) -> float:
        """Return the latency from the farthest GPU out of the host, us."""
        if not self.way_out:
            return 0.0
        routes = (self.routes.route(gpu, self.way_out) for gpu in self.routes.gpus)
        return max(route.latency_us for route in routes)

    def sends(self, pairs: Iterable[Pair]) -> Floats:
        """Return seconds per byte on every link if all these pairs of ranks send."""
        shares = np.zeros(len(self.routes.hops))
        for a, b in pairs:
            shares += self.routes.between(self.gpu(a), self.gpu(b)).shares
        return self.routes.seconds(shares)

    def longest_us(self, pairs: Iterable[Pair]) -> float:
        """Return the latency of the longest route between these pairs of ranks, us."""
        routes = (self.routes.between(self.gpu(a), self.gpu(b)) for a, b in pairs)
        return max(route.latency_us for route in routes)

    @cached_property
    def tables(self) -> tuple[Floats, Floats]:
        """Return the loads and latencies between all pairs of GPUs.

        Seconds per byte on every link, (gpus, gpus, links), and seconds, (gpus, gpus).
        """
        gpus = range(len(self.routes.gpus))
        loads = np.zeros((len(gpus), len(gpus), len(self.routes.hops)))
        latency_s = np.zeros((len(gpus), len(gpus)))
        for a, b in itertools.permutations(gpus, 2):
            route = self.routes.between(a, b)
            loads[a, b] = self.routes.seconds(route.shares)
            latency_s[a, b] = route.latency_us * 1e-6
        return loads, latency_s

    @cached_property
    def nearest_us(self) -> float:
        """Return the latency from the most remote GPU to its nearest neighbour, us."""
        gpus = range(len(self.routes.gpus))
        near = [
            min(
                (self.routes.between(a, b).latency_us for b in gpus if b != a),
                default=0.0,
            )
            for a in gpus
        ]
        return max(near)

    @property
    def gpu_s_per_byte(self) -> float:
        """Return seconds per byte out of the slowest GPU, spread over all its links."""
        graph = self.routes.graph
        totals = [
            math.fsum(link["effective_gb_s"] for link in graph.adj[gpu].values())
            for gpu in self.routes.gpus
        ]
        return 1e-9 / min(totals) if min(totals) else 0.0
