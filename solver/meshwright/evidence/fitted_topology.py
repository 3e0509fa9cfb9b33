"""Fits a topology to logs of nccl-tests, and compares its predictions with them.

The ranks of a log fill the levels from the innermost one on; the fit is one of the
outermost level that they span. A ring over M ranks below each of its children passes
that child's uplinks once for all of them: with an uplink per GPU each gives 1/M of the
ring's bandwidth (`topology.fabric`).

On a machine of nodes and links, GPUs that reach each other over one switch are a level:
a log of one machine gives the speed of their links to it. Where pairs of GPUs are
linked directly, a log does not tell one link from another, and only the levels that
join machines are fitted.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.evidence.link_fit import (
    FORMULAS,
    LARGE_BYTES,
    LinkFit,
    at_bandwidth,
    fit_log,
    predicted_s,
    put_share,
    rounded,
)
from meshwright.imports.nccl_tests import NcclLog
from meshwright.imports.read import read_facts
from meshwright.plans.columns import Floats
from meshwright.reading.document import Document, Where, validated
from meshwright.report.tables import Table
from meshwright.spec.cluster import Cluster
from meshwright.spec.topology import USUAL_BUS_SHARE, Level, ScaleOut, Topology
from meshwright.spec.units import LARGEST
from meshwright.surface import option
from meshwright.topology.fabric import Fabric, LevelFabric, Meshes
from meshwright.topology.routed_fabric import build_fabric

HUGE_BYTES = 2.0**40
"""Size of a message whose latency is negligible."""

SLOWER = 1.05
"""Ratio of times from which on a topology is said to be slower than a log."""

UNITS = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB"}


def fit_files(
    fields: dict[str, Any],
    topology: Topology,
    kind: str,
    paths: Sequence[Path],
    op: str,
    ranks: int,
) -> tuple[dict[str, Any], tuple[str, ...], list[Table]]:
    """Return a topology fitted to logs, notes on replaced values, and a table per log.

    Raises:
        SpecError: a log is not understood, or its ranks do not lie on the levels.
    """
    logs: list[NcclLog] = [read_facts(kind, path, op, ranks) for path in paths]
    fits = [fit_log(log) for log in logs]
    try:
        if topology.nodes:
            fitted, notes = apply_to_nodes(fields, topology, fits)
        else:
            fitted, notes = apply(fields, fits)
    except SpecError as error:
        raise SpecError(f"{option('onto', topology.name)}: {error}") from None
    told = [f"{log.name}: {note}" for log in logs for note in log.notes]
    result = _fitted_topology(fitted, topology, paths)
    tables = [_table(result, *pair) for pair in zip(logs, fits, strict=True)]
    slower = [note for fit in fits for note in _slower_inside(result, fit)]
    return fitted, (*told, *notes, *slower), tables


def _fitted_topology(
    fields: dict[str, Any], topology: Topology, paths: Sequence[Path]
) -> Topology:
    """Return a topology with fits on its links.

    Raises:
        SpecError: the rate of a log is out of range for links.
    """
    place = Where(f"{option('onto', topology.name)}, fitted to {paths[0]}")
    whole = {**fields, "gpu": topology.gpu}
    return validated(Document(fields, {(): place}), Topology, whole)


def _price(topology: Topology, fit: LinkFit, sizes: Floats) -> Floats:
    if topology.nodes:
        return price_on_nodes(topology, fit, sizes)
    return price(topology.model_dump(), fit, sizes)


def _slower_inside(topology: Topology, fit: LinkFit) -> Iterator[str]:
    """Yield a note where links inside a machine of nodes are slower than the log."""
    huge = np.array([HUGE_BYTES])
    times = float(_price(topology, fit, huge)[0]) / predicted_s(fit, HUGE_BYTES)
    if topology.nodes and times > SLOWER:
        yield (
            f"{topology.name}: links inside let less through than {fit.name} has; "
            f"large messages are predicted {times:.1f} times as slow."
        )


def _table(topology: Topology, log: NcclLog, fit: LinkFit) -> Table:
    sizes = np.array([float(row.size_bytes) for row in log.timed])
    logged_us = np.array([row.time_s * 1e6 for row in log.timed])
    predicted_us = _price(topology, fit, sizes) * 1e6
    errors = predicted_us / logged_us - 1
    cells = zip(sizes, logged_us, predicted_us, errors, strict=True)
    rows = [
        (_size(int(size)), f"{logged:,.1f}", f"{predicted:,.1f}", f"{error:+.1%}")
        for size, logged, predicted, error in cells
    ]
    title = f"{log.name}: {log.op} over {log.ranks} GPUs, {_medians(sizes, errors)}"
    return Table(title, ("message", "logged us", "predicted us", "error"), tuple(rows))


def _medians(sizes: Floats, errors: Floats) -> str:
    """Return the median errors above and below 1 MiB, where there are sizes."""
    parts = {"from 1 MiB on": sizes >= LARGE_BYTES, "below": sizes < LARGE_BYTES}
    told = [
        f"{np.median(np.abs(errors[are_in_part])):.1%} {words}"
        for words, are_in_part in parts.items()
        if are_in_part.any()
    ]
    return "median error " + ", ".join(told)


def _size(size_bytes: int) -> str:
    for unit, name in UNITS.items():
        if size_bytes % unit == 0:
            return f"{size_bytes // unit:,} {name}"
    return f"{size_bytes:,} B"


Fields = dict[str, Any]


class MachineExit(NamedTuple):
    """The way from a GPU out of a machine of nodes and links."""

    nics_per_gpu: float
    inside_us: float
    """Latency from a GPU to the port of its NIC."""


@dataclass(frozen=True)
class _Place:
    """Where the ranks of a log lie on the levels."""

    factors: tuple[int, ...]
    """The ranks as factors, one for each level that they span."""
    levels_of_node: int
    exit: MachineExit | None = None
    is_cut: bool = False
    """Whether the ranks leave GPUs of the innermost level out."""

    @property
    def level(self) -> int:
        """Return the index of the outermost level that the ranks span."""
        return len(self.factors) - 1

    def members_below(self, level: int) -> int:
        """Return how many of the ranks lie below each child of a level."""
        return math.prod(self.factors[:level])

    def uplinks(self, level: int, uplink: str) -> float:
        """Return how many uplinks the ranks below a child of a level have."""
        members = self.members_below(level)
        per_gpu = self.exit.nics_per_gpu if self.exit else 1.0
        return {"shared": 1.0, "per_nic": per_gpu * members}.get(uplink, members)

    def inner_us(self, inner: Sequence[ScaleOut]) -> float:
        """Return the latency of the way up to the level, without that of the level."""
        ways = [level.latency_us for level in inner]
        if self.exit and ways:
            ways[0] = self.exit.inside_us
        return math.fsum(ways)

    def longest_us(self, fit: LinkFit, inner: Sequence[ScaleOut]) -> float:
        """Return the latency of the way up to the level that a fit tells.

        Of the n - 1 hops of a ring over k nodes only k - 1 leave nodes, and the fit
        tells their mean.
        """
        members = math.prod(self.factors[: self.levels_of_node])
        nodes = fit.ranks // members
        if nodes == 1 or not fit.is_ring:
            return fit.latency_us
        on_node = zip(inner[: self.levels_of_node], self.factors, strict=False)
        inside_us = math.fsum(
            level.latency_us for level, factor in on_node if factor > 1
        )
        all_us = (fit.ranks - 1) * fit.latency_us
        return (all_us - (fit.ranks - nodes) * inside_us) / (nodes - 1)


def apply(
    fields: Mapping[str, Any],
    fits: Iterable[LinkFit],
    way_out: MachineExit | None = None,
) -> tuple[Fields, tuple[str, ...]]:
    """Return the fields of a topology with fits on its levels, and what was replaced.

    Of several fits of one level, the one with the slowest link is taken.

    Args:
        fields: Fields of the topology; a machine of nodes and links is its first level.
        fits: Fits, each of one log.
        way_out: The way out of such a machine.

    Raises:
        SpecError: the topology has no levels, or the ranks do not lie on them.
    """
    result = copy.deepcopy(dict(fields))
    holders = _holders(result)
    sizes = [holder.get("size") for holder in holders]
    best: dict[int, tuple[LinkFit, _Place]] = {}
    notes = []
    for fit in fits:
        host_size = _host_size(result, sizes)
        factors = _factors(fit, sizes, host_size)
        is_cut = factors[0] < (sizes[0] or 1)
        place = _Place(factors, _levels_of_node(sizes, host_size), way_out, is_cut)
        before = best.get(place.level)
        if before is None or _link_gb_s(fit, place, holders) < _link_gb_s(
            *before, holders
        ):
            best[place.level] = (fit, place)
        if before is not None:
            left = before[0] if best[place.level][0] is fit else fit
            notes.append(f"{left.name}: left out; another log of its level is slower.")
    for index in sorted(best):
        notes += _replace(holders, *best[index])
    return result, tuple(notes)


def price(fields: Mapping[str, Any], fit: LinkFit, sizes: Floats) -> Floats:
    """Return the seconds of the collective of a log on the levels of a topology.

    No other ranks use the levels, as when the log was made.
    """
    holders = _holders(dict(fields))
    counts = [holder.get("size") for holder in holders]
    host_size = _host_size(dict(fields), counts)
    factors = _factors(fit, counts, host_size)
    levels = [
        Level(**_open(holder), size=factor)
        for holder, factor in zip(holders, factors, strict=False)
    ]
    on_node = _levels_of_node(counts, host_size)
    fabric = LevelFabric(levels, levels_of_node=on_node)
    return price_on_fabric(fabric, np.array([[factors]]), fit, sizes)


def price_on_fabric(
    fabric: Fabric, mesh: Meshes, fit: LinkFit, sizes: Floats
) -> Floats:
    """Return the seconds of the collective of a log over one mesh of a fabric."""
    is_exchange = fit.op == "alltoall"
    loads = fabric.exchange_loads(mesh, 0) if is_exchange else fabric.loads(mesh)[:, 0]
    # Loads are those of links that collectives fill to the usual share.
    s_per_byte = loads.max(axis=1) / USUAL_BUS_SHARE
    hop_s = fabric.latency_s if fit.is_ring else fabric.longest_s
    step_s = hop_s(mesh)[0]
    return FORMULAS[fit.op](sizes, np.array(fit.ranks), s_per_byte, step_s)


def _holders(fields: Fields) -> list[Fields]:
    """Return the mappings of the levels, innermost first, checked."""
    levels = fields.get("levels")
    if not isinstance(levels, list | tuple) or not levels:
        raise SpecError("levels: missing; fits go on levels, not on nodes and links")
    fields["levels"] = [dict(level) for level in levels]
    holders: list[Fields] = fields["levels"]
    for index, level in enumerate(holders):
        _checked(Level, level, f"levels[{index}]")
    if fields.get("scale_out"):
        fields["scale_out"] = dict(fields["scale_out"])
        _checked(ScaleOut, fields["scale_out"], "scale_out")
        holders = [*holders, fields["scale_out"]]
    return holders


def _checked(kind: type[ScaleOut], level: Fields, path: str) -> ScaleOut:
    try:
        return kind.model_validate(level)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        field = ".".join(map(str, (path, *detail["loc"])))
        raise SpecError(f"{field}: {detail['msg']}") from None


def _host_size(fields: Fields, sizes: Sequence[int | None]) -> int | None:
    host = fields.get("host") or {}
    gpus = host.get("gpus") if isinstance(host, Mapping) else host.gpus
    return gpus or sizes[0]


def _levels_of_node(sizes: Sequence[int | None], host_size: int | None) -> int:
    """Return how many levels lie inside a node, as `build_fabric` counts them."""
    gpus = list(accumulate((size or 0 for size in sizes), mul))
    return gpus.index(host_size) + 1 if host_size in gpus else 1


def _factors(
    fit: LinkFit, sizes: Sequence[int | None], host_size: int | None
) -> tuple[int, ...]:
    """Return the ranks as factors that fill the levels, from the innermost one on.

    A log that lists its hosts says how many ranks each has.
    """
    left, factors, parts = fit.ranks, [], list(sizes)
    if fit.nodes and fit.nodes > 1 and host_size == sizes[0]:
        parts[0] = min(sizes[0] or fit.ranks, fit.ranks // fit.nodes)
    for size in parts:
        factor = left if size is None else math.gcd(left, size)
        factor = left if size is not None and left <= size else factor
        left //= factor
        factors.append(factor)
        if left == 1:
            return tuple(factors)
        if factor != size:
            break
    shape = " x ".join("any" if size is None else str(size) for size in sizes)
    raise SpecError(f"{fit.name}: {fit.ranks} ranks do not fill levels of {shape} GPUs")


def _link_gb_s(fit: LinkFit, place: _Place, holders: Sequence[Fields]) -> float:
    """Return the bandwidth of one uplink of the level.

    In a ring each rank sends 1/M of its data beyond its child, in an exchange the part
    for the n - M ranks elsewhere.
    """
    members = place.members_below(place.level)
    is_exchange, others = fit.op == "alltoall", max(fit.ranks - 1, 1)
    share = (fit.ranks - members) / others if is_exchange else 1 / members
    uplink = holders[place.level].get("uplink", "per_gpu")
    return fit.gb_s * share * members / place.uplinks(place.level, uplink)


def _replace(holders: Sequence[Fields], fit: LinkFit, place: _Place) -> Iterable[str]:
    """Put a fit on its level; yield notes on the values it replaces."""
    level = holders[place.level]
    declared = _checked(ScaleOut, _open(level), "levels")
    name, gb_s = level["name"], _link_gb_s(fit, place, holders)
    reached_gb_s = declared.gb_s * declared.bus_share
    if not fit.is_bandwidth_told:
        fit = at_bandwidth(fit, fit.gb_s * reached_gb_s / gb_s)
        yield f"{name}: bus_share kept: the sizes of {fit.name} are too small to tell."
    elif _is_partial(declared, place):
        yield (
            f"{name}: bus_share kept: {fit.name} has one GPU a machine, and {gb_s:.4g} "
            f"GB/s of one do not tell what the others reach over the same uplink."
        )
    else:
        if gb_s > declared.gb_s:
            fit = at_bandwidth(fit, fit.gb_s * declared.gb_s / gb_s)
        yield from put_share(level, declared, gb_s, fit)
    inner = [_checked(ScaleOut, _open(one), "levels") for one in holders[: place.level]]
    yield from _slower(inner, fit, place)
    if not fit.is_latency_told:
        yield f"{name}: latency_us kept: {fit.name} has large sizes only."
        return
    own_us = place.longest_us(fit, inner) - place.inner_us(inner)
    latency_us = rounded(max(0.0, own_us))
    yield f"{name}: latency_us {level['latency_us']} -> {latency_us:g}, from it too."
    level["latency_us"] = latency_us


def _is_partial(level: ScaleOut, place: _Place) -> bool:
    """Return whether one GPU had an uplink that all GPUs of its machine share."""
    members = place.members_below(place.level)
    return level.uplink == "shared" and members == 1 and place.is_cut


def _slower(inner: list[ScaleOut], fit: LinkFit, place: _Place) -> Iterable[str]:
    """Yield notes on inner levels that are slower than the fit."""
    for index, level in enumerate(inner):
        rails = place.uplinks(index, level.uplink)
        reached_gb_s = level.gb_s * level.bus_share * rails
        if reached_gb_s < 0.995 * fit.gb_s:
            yield (
                f"{level.name}: lets {reached_gb_s:g} GB/s through, less than "
                f"the {fit.gb_s:.4g} of {fit.name}; it stays the bottleneck."
            )


def _open(level: Fields) -> Fields:
    return {name: value for name, value in level.items() if name != "size"}


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
        told = "pairs of GPUs have direct links, which the log does not tell"
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
