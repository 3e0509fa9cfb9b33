"""The bandwidth between every two GPUs, along the route that messages take."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.spec.cluster import Cluster
from meshwright.topology.graph import machine_graph
from meshwright.topology.routes import Routes

MOST_GPUS = 16
"""GPUs up to which the matrix is printed, and covers all of a tree."""

MOST_PAIRED = 128
"""GPUs of a host up to which pairs are compared."""


@dataclass(frozen=True)
class PairBandwidths:
    """GPUs, and the GB/s between every two; None on the diagonal."""

    gpus: tuple[str, ...]
    gb_s: tuple[tuple[float | None, ...], ...]

    @property
    def range_gb_s(self) -> tuple[float, float]:
        """Return the least and the greatest bandwidth."""
        known = [value for row in self.gb_s for value in row if value is not None]
        return min(known), max(known)


def pair_bandwidths(cluster: Cluster) -> PairBandwidths:
    """Return the pairs of the first host, or of a whole tree of up to 16 GPUs."""
    return _of_levels(cluster) if cluster.is_tree else _of_routes(cluster)


def _of_levels(cluster: Cluster) -> PairBandwidths:
    is_small = cluster.gpus <= MOST_GPUS
    count = min(cluster.gpus if is_small else cluster.gpus_per_host, MOST_PAIRED)
    rows = (
        tuple(None if a == b else _uplink_gb_s(cluster, a, b) for b in range(count))
        for a in range(count)
    )
    return PairBandwidths(tuple(f"gpu{rank}" for rank in range(count)), tuple(rows))


def _uplink_gb_s(cluster: Cluster, a: int, b: int) -> float:
    """Return the narrowest uplink up to the lowest switch above both ranks.

    A pair uses one uplink of each level, however many are parallel. A topology of
    nodes and links has no such levels: infinite.
    """
    least = float("inf")
    for level in () if cluster.topology.nodes else cluster.levels:
        a, b, least = a // level.size, b // level.size, min(least, level.gb_s)
        if a == b:
            break
    return least


def _of_routes(cluster: Cluster) -> PairBandwidths:
    routes = Routes(machine_graph(cluster.hosts.groups[0].machine))
    gpus, nodes = routes.gpus, routes.graph.nodes
    if len(gpus) > MOST_GPUS:
        gpus = [gpu for gpu in gpus if nodes[gpu]["host"] == nodes[gpus[0]]["host"]]
    gpus = gpus[:MOST_PAIRED]
    rated = [node.name for node in cluster.rated_host[0].nodes if node.kind == "gpu"]
    ranks = {gpu: rated.index(gpu) for gpu in gpus}

    def gb_s(a: str, b: str) -> float:
        rail_gb_s = _uplink_gb_s(cluster, ranks[a], ranks[b])
        return min(_route_gb_s(routes, a, b), rail_gb_s)

    rows = (tuple(None if a == b else gb_s(a, b) for b in gpus) for a in gpus)
    return PairBandwidths(tuple(gpus), tuple(rows))


def _route_gb_s(routes: Routes, start: str, end: str) -> float:
    """Return the rate of a message at which the first link of its route is full."""
    shares = routes.route(start, end).shares
    used = shares > 0
    return float((routes.gb_s[used] / shares[used]).min())
