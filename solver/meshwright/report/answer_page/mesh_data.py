"""The data of the drawn mesh: hosts with their ranks, and where each axis lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.plans.plan import Plan
from meshwright.plans.ranks import RankMap, rank_map
from meshwright.spec.cluster import Cluster
from meshwright.spec.plan_fields import AXES

MOST_HOSTS = 12
"""Hosts up to which all are drawn; of more, those of the groups of rank 0."""

MOST_GPUS = 64
"""Most GPUs that are drawn of a host."""

DOES = {
    "tp": "shares every layer",
    "cp": "shares every sequence",
    "dp_shard": "shares parameters and optimizer",
    "dp_replicate": "holds a copy, and averages gradients",
    "pp": "passes activations on",
}
"""By axis, what the ranks of a group do together."""


def mesh_data(cluster: Cluster, plan: Plan) -> dict[str, Any]:
    """Return the hosts to draw, and the place of each of their GPUs on each axis."""
    ranks = rank_map(cluster, plan)
    used = [axis for axis in AXES if int(np.prod(plan.mesh[axis])) > 1]
    notes = _hosts(ranks, used)
    columns = [AXES.index(axis) for axis in used]
    return {
        "axes": [_axis(cluster, plan, axis) for axis in used],
        "hosts": [
            {
                "name": ranks.hosts[host],
                "note": note,
                "gpus": _gpus(ranks, host, columns),
            }
            for host, note in notes.items()
        ],
        "told": _told(ranks, len(notes)),
    }


def _told(ranks: RankMap, drawn: int) -> str:
    used = len(np.unique(ranks.host))
    if drawn == used:
        return f"All {used:,} hosts." if used > 1 else "The only host."
    return f"{drawn} of {used:,} hosts: that of rank 0, and those of ranks it talks to."


def _gpus(ranks: RankMap, host: int, columns: list[int]) -> list[dict[str, Any]]:
    own = np.flatnonzero(ranks.host == host)
    own = own[np.argsort(ranks.device[own], kind="stable")][:MOST_GPUS]
    return [
        {
            "rank": rank,
            "device": int(ranks.device[rank]),
            "at": ranks.coordinates[rank, columns].tolist(),
        }
        for rank in own.tolist()
    ]


def _hosts(ranks: RankMap, used: list[str]) -> dict[int, str]:
    """Return the hosts to draw, each with a note of why it is one of many drawn."""
    every = np.unique(ranks.host).tolist()
    if len(every) <= MOST_HOSTS:
        return dict.fromkeys(every, "")
    notes = {int(ranks.host[0]): ""}
    for axis in used:
        others = [host for host in _group_hosts(ranks, axis) if host not in notes]
        for host in dict.fromkeys([*others[:1], *others[-1:]]):
            notes[host] = axis
    return {host: notes[host] for host in sorted(notes)[:MOST_HOSTS]}


def _group_hosts(ranks: RankMap, axis: str) -> list[int]:
    """Return the hosts of the group of rank 0 along one axis, in its order."""
    others = [i for i, name in enumerate(AXES) if name != axis]
    zero: Ints = ranks.coordinates[:, others] == ranks.coordinates[0, others]
    return list(dict.fromkeys(ranks.host[zero.all(axis=1)].tolist()))


def _axis(cluster: Cluster, plan: Plan, axis: str) -> dict[str, Any]:
    """Return an axis: its degree, the levels that it lies in, and its slowest link."""
    names, rates = _levels(cluster, len(plan.mesh[axis]))
    factors = plan.mesh[axis]
    lies = [
        f"{factor} in {name}"
        for factor, name in zip(factors, names, strict=True)
        if factor > 1
    ]
    outermost = max(level for level, factor in enumerate(factors) if factor > 1)
    return {
        "name": axis,
        "degree": int(np.prod(factors)),
        "lies": " x ".join(lies),
        "over": names[outermost],
        "gbS": rates[outermost],
        "does": DOES[axis],
    }


def _levels(cluster: Cluster, count: int) -> tuple[list[str], list[float | str]]:
    """Return names and GB/s of the levels of a mesh, innermost first."""
    if cluster.is_tree and len(cluster.levels) == count:
        return (
            [level.name for level in cluster.levels],
            [level.gb_s for level in cluster.levels],
        )
    outer = cluster.hosts.outer if not cluster.is_tree else ()
    names = ["the host", *(level.name for level in outer)][:count]
    rates: list[float | str] = ["its links", *(level.gb_s for level in outer)]
    more = [f"level {level}" for level in range(len(names), count)]
    return names + more, [*rates, *["-"] * count][:count]
