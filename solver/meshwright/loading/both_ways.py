"""Hints at bandwidths that were given for both directions together, as vendors do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshwright.spec.cluster import Cluster
from meshwright.spec.topology import Topology

SLACK = 1.02
"""Factor by which data sheets round."""


def tell_both_ways(clusters: Iterable[Cluster], notes: list[str] | None) -> None:
    """Add notes on links between GPUs that are faster than the GPU has them."""
    found: dict[str, None] = {}
    for cluster in clusters if notes is not None else ():
        topologies = [own.topology for own in cluster.parts] or [cluster.topology]
        for topology in topologies:
            found |= dict.fromkeys(_too_fast(topology))
    if notes is not None:
        notes += found


def _too_fast(topology: Topology) -> Iterator[str]:
    gpu = topology.gpu
    if not gpu.peer_links or not gpu.peer_link_gb_s:
        return
    one_way = gpu.peer_links * gpu.peer_link_gb_s
    for level in topology.levels[:1]:
        if level.uplink != "per_gpu" or level.gb_s <= one_way * SLACK:
            continue
        is_double = level.gb_s <= 2 * one_way * SLACK
        why = "that is both ways together; gb_s is one way" if is_double else "one way"
        yield (
            f"level {level.name}: {level.gb_s:g} GB/s, but {gpu.name} has "
            f"{gpu.peer_links} links of {gpu.peer_link_gb_s:g}, {one_way:g} in all: "
            f"{why}"
        )
