"""Puts fitted links on a machine of nodes and links, and on the levels above it.

GPUs that reach each other over one switch are a level: a log of one machine gives the
speed of their links to it. Where pairs of GPUs are linked directly, a log does not tell
one link from another, and only the levels that join machines are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.errors import SpecError
from meshwright.evidence.link_fit import LinkFit
from meshwright.evidence.link_levels import (
    Fields,
    MachineExit,
    apply,
    price_on_fabric,
)
from meshwright.plans.columns import Floats
from meshwright.spec.cluster import Cluster
from meshwright.spec.links import Level
from meshwright.spec.topology import Topology
from meshwright.spec.units import LARGEST
from meshwright.topology.fabric_builder import build_fabric

_FITTED = ("gb_s", "bus_share", "latency_us")

INSIDE = "machine"
"""Name of the inside of a machine whose GPUs have no common switch."""


def apply_to_nodes(
    fields: Mapping[str, Any], topology: Topology, fits: Sequence[LinkFit]
) -> tuple[Fields, tuple[str, ...]]:
    """Return the fields of a topology of nodes with fits, and what was replaced.

    Raises:
        SpecError: the ranks are not all GPUs of machines, or the machine has no switch
            that a log of one machine could be about.
    """
    gpus = sum(node.kind == "gpu" for node in topology.nodes)
    hub = _hub(topology, gpus)
    for fit in fits:
        _check(fit, gpus, hub)
    above = {name: fields[name] for name in ("levels", "scale_out") if name in fields}
    inside_us = _hop_us(topology, gpus) / 2
    inside = hub or Level(name=INSIDE, size=gpus, gb_s=LARGEST, latency_us=inside_us)
    levels = [inside.model_dump(), *above.get("levels", ())]
    flat, notes = apply({**above, "levels": levels}, fits, _way_out(topology, gpus))
    result = {**fields, **flat, "levels": flat["levels"][1:]}
    if not result["levels"]:
        del result["levels"]
    if hub:
        names = {node.name for node in topology.nodes if node.kind == "gpu"}
        level = flat["levels"][0]
        result["links"] = [_fitted(link, names, level) for link in fields["links"]]
    return result, notes


def price_on_nodes(topology: Topology, fit: LinkFit, sizes: Floats) -> Floats:
    """Return the seconds of the collective of a log on machines of nodes and links."""
    gpus = sum(node.kind == "gpu" for node in topology.nodes)
    factors, machines = [gpus], fit.ranks // gpus
    for level in topology.levels:
        factors.append(math.gcd(machines, level.size))
        machines //= factors[-1]
    count = machines if topology.scale_out else 1
    fabric = build_fabric(Cluster(topology=topology, count=count))
    mesh = np.array([[[*factors, *([count] if count > 1 else [])]]])
    return price_on_fabric(fabric, mesh, fit, sizes)


def _check(fit: LinkFit, gpus: int, hub: Level | None) -> None:
    machines = fit.ranks // gpus
    if fit.ranks % gpus or (fit.nodes or machines) != machines:
        told = f"{fit.ranks} ranks are not all GPUs of machines of {gpus}"
        raise SpecError(f"{fit.name}: {told}")
    if fit.ranks == gpus and hub is None:
        told = "pairs of GPUs have links of their own, which the log does not tell"
        raise SpecError(f"{fit.name}: {told} apart; expected a log of several machines")


def _hub(topology: Topology, gpus: int) -> Level | None:
    """Return the switch that the widest link of each GPU goes to, as a level."""
    kinds = {node.name: node.kind for node in topology.nodes}
    widest: dict[str, tuple[float, float, str]] = {}
    for link in topology.links:
        for end, other in (link.between, link.between[::-1]):
            candidate = (link.gb_s, -link.latency_us, other)
            if kinds[end] == "gpu" and candidate > widest.get(end, (0.0, 0.0, "")):
                widest[end] = candidate
    found = set(widest.values())
    if len(widest) < max(gpus, 2) or len(found) > 1:
        return None
    gb_s, latency_us, name = found.pop()
    is_switch = kinds[name] == "switch"
    level = Level(name=name, size=gpus, gb_s=gb_s, latency_us=-latency_us)
    return level if is_switch else None


def _fitted(link: Fields, gpus: set[str], level: Fields) -> Fields:
    """Return a link, with the rates of the level if it joins a GPU to its switch."""
    ends = set(link["between"])
    if level["name"] not in ends or not ends & gpus:
        return link
    return {**link, **{name: level[name] for name in _FITTED}}


def _hop_us(topology: Topology, gpus: int) -> float:
    """Return the latency of a hop of a ring over the GPUs of a machine."""
    sizes = (gpus, *(1 for _ in topology.levels))
    fabric = build_fabric(Cluster(topology=topology, count=1))
    return float(fabric.latency_s(np.array([[sizes]]))[0, 0]) * 1e6


def _way_out(topology: Topology, gpus: int) -> MachineExit | None:
    if not topology.above:
        return None
    count = 1 if topology.levels else 2
    cluster = Cluster(topology=topology, count=count)
    sizes = cluster.fan_outs
    mesh = np.array([[[*sizes[:2], *(1 for _ in sizes[2:])]]])
    step_us = float(build_fabric(cluster).longest_s(mesh)[0, 0]) * 1e6
    nics = sum(node.kind == "nic" for node in topology.nodes)
    inside_us = max(0.0, step_us / 2 - topology.above[0].latency_us)
    return MachineExit(nics / gpus, inside_us)
