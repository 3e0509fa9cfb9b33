"""The data of the drawn cluster: points, links, and how long each link is busy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from meshwright.report.answer_page.numbers import rounded
from meshwright.results.priced_plan import LinkLoad, PricedPlan
from meshwright.spec.cluster import Cluster, StagedCluster
from meshwright.topology.diagram import Diagram, draw_cluster

MOST_LOADS = 200
"""Loads in the table of a page, the largest first."""

_HOST = re.compile(r"^node\d+\.")
"""The name of a host before the name of what is in it."""

_NUMBER = re.compile(r"\d+( \.\.\.)?$")
"""The number of one of several equals, or of the rest of them."""


def cluster_data(cluster: Cluster, priced: PricedPlan) -> dict[str, Any]:
    """Return the diagram of a cluster with the loads that a plan puts on its links."""
    sketch = draw_cluster(cluster)
    busy = _busy(priced.all_links, cluster.is_tree)
    lines = [
        {
            "ends": line.ends,
            "gbS": rounded(line.gb_s),
            "rails": line.rails,
            "phases": (phases := busy.get(_key(line.ends, cluster.is_tree), {})),
            "total": math.fsum(phases.values()),
        }
        for line in sketch.lines
    ]
    return {
        "told": _told(cluster, sketch),
        "points": [
            (point.name, point.kind, point.count, rounded(point.x), rounded(point.y))
            for point in sketch.points
        ],
        "lines": lines,
        "phases": list(dict.fromkeys(load.phase for load in priced.all_links)),
        "loads": [_load(load) for load in priced.all_links[:MOST_LOADS]],
        "bottleneck": _bottleneck(priced.all_links),
    }


def _told(cluster: Cluster, sketch: Diagram) -> str:
    kinds = cluster.kinds if isinstance(cluster, StagedCluster) else [cluster.topology]
    names = " and ".join(dict.fromkeys(kind.gpu.name for kind in kinds))
    whole = f"{cluster.gpus:,} x {names}"
    return f"{whole}, drawn: {sketch.part}." if sketch.part else f"{whole}."


Phases = dict[str, float]


def _busy(loads: Iterable[LinkLoad], is_tree: bool) -> dict[frozenset[str], Phases]:
    """Return how long a link is busy by phase: the busier way of the busiest equal."""
    busy: dict[frozenset[str], Phases] = {}
    for load in loads:
        ends = load.link.split(" -> ")
        phases = busy.setdefault(_key(ends, is_tree), {})
        seconds = max(phases.get(load.phase, 0.0), load.seconds)
        phases[load.phase] = rounded(seconds)
    return busy


def _key(ends: Iterable[str], is_tree: bool) -> frozenset[str]:
    """Return what links with equal loads share: on a tree, the levels they join."""
    names = [_HOST.sub("", end) for end in ends]
    return frozenset(_NUMBER.sub("", name) if is_tree else name for name in names)


def _load(load: LinkLoad) -> tuple[str, str, float, float]:
    return load.link, load.phase, rounded(load.gb), rounded(load.seconds)


def _bottleneck(loads: Iterable[LinkLoad]) -> tuple[str, str, float, float] | None:
    """Return the link that is busy longest, its largest phase, its GB and seconds."""
    by_link: dict[str, list[LinkLoad]] = {}
    for load in loads:
        by_link.setdefault(load.link, []).append(load)
    if not by_link:
        return None
    worst = max(
        by_link.values(), key=lambda own: math.fsum(load.seconds for load in own)
    )
    first = max(worst, key=lambda load: load.seconds)
    gb = math.fsum(load.gb for load in worst)
    seconds = math.fsum(load.seconds for load in worst)
    return first.link, first.phase, rounded(gb), rounded(seconds)
