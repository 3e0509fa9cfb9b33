"""What hosts with the same graph take to pass bytes between their GPUs, and out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.topology.routes import Routes

Floats = NDArray[np.float64]
Pair = tuple[int, int]
"""Ranks in a host: who sends, who receives."""


@dataclass(frozen=True, eq=False)
class HostKind:
    """Hosts with the same graph, and where ranks are on them."""

    routes: Routes
    name: str = ""
    """Of the first such host; empty where there is one host only."""
    way_out: str = ""
    """The switch outside that its NICs reach; empty where nothing is outside."""
    order: tuple[int, ...] = ()
    """The GPU of each rank in the host, by its place in the list; empty: as listed."""

    def gpu(self, rank: int) -> int:
        """Return the GPU of a rank, by its place in the list."""
        return self.order[rank] if self.order else rank

    @property
    def link_names(self) -> list[str]:
        """Return the name of every link, one way."""
        ahead = f"{self.name}." if self.name else ""
        return [
            f"{a if a == self.way_out else ahead + a} -> "
            f"{b if b == self.way_out else ahead + b}"
            for a, b in self.routes.hops
        ]

    @cached_property
    def exits(self) -> Floats:
        """Return seconds per byte on every link if each GPU sends one out, and in."""
        shares = np.zeros(len(self.routes.hops))
        for gpu in self.routes.gpus if self.way_out else ():
            shares += self.routes.route(gpu, self.way_out).shares
            shares += self.routes.route(self.way_out, gpu).shares
        return self.routes.seconds(shares)

    @cached_property
    def exit_us(self) -> float:
        """Return the longest way of a GPU out of the host, us."""
        if not self.way_out:
            return 0.0
        ways = (self.routes.route(gpu, self.way_out) for gpu in self.routes.gpus)
        return max(way.latency_us for way in ways)

    def sends(self, pairs: Iterable[Pair]) -> Floats:
        """Return seconds per byte on every link if ranks send to ranks."""
        shares = np.zeros(len(self.routes.hops))
        for a, b in pairs:
            shares += self.routes.between(self.gpu(a), self.gpu(b)).shares
        return self.routes.seconds(shares)

    def longest_us(self, pairs: Iterable[Pair]) -> float:
        """Return the latency of the longest way between ranks, us."""
        ways = (self.routes.between(self.gpu(a), self.gpu(b)) for a, b in pairs)
        return max(way.latency_us for way in ways)

    @cached_property
    def tables(self) -> tuple[Floats, Floats]:
        """Return seconds per byte on each link, and seconds, between all GPUs.

        Shapes (gpus, gpus, links) and (gpus, gpus).
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
        """Return the latency of the shortest way from any GPU, where it is longest."""
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
    def widest_s(self) -> float:
        """Return seconds for a byte out of the slowest GPU, over all its links."""
        graph = self.routes.graph
        totals = [
            float(sum(link["gb_s"] for link in graph.adj[gpu].values()))
            for gpu in self.routes.gpus
        ]
        return 1e-9 / min(totals) if min(totals) else 0.0
