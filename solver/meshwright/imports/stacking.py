"""Stacks the levels of a fabric on a machine, with uplinks that fit each other.

Files of Slurm name switches, but no speeds: machines then have the uplinks of their
`scale_out`, and switches as many uplinks as downlinks. Files of ibnetdiscover have the
speed of every cable: the sum at a machine is divided among the uplinks of `scale_out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.imports.imported import Imported
from meshwright.spec.cluster import Cluster
from meshwright.spec.host_groups import split_levels
from meshwright.spec.links import Level, ScaleOut
from meshwright.spec.topology import Topology

UPPER_LATENCY_US = 0.5
"""Estimate: latency of levels above the first, as in topologies/dgx-h100-pod.yaml."""


def stack(imported: Imported, topology: Topology) -> Imported:
    """Return the levels of a topology: those inside a machine, then the fabric's.

    Args:
        imported: The levels above a machine, innermost first.
        topology: The machine; the levels above it define its uplinks.

    Raises:
        SpecError: the machine has no NIC for the levels to join.
    """
    if topology.nodes and not any(node.kind == "nic" for node in topology.nodes):
        raise SpecError(f"machine {topology.name} has no NIC that switches could join")
    given = [_level(**level) for level in imported.fields["levels"]]
    given = [level for level in given if level.size > 1]
    inside, above = _split(topology)
    notes = [note for note in imported.notes if note != imported.guess]
    notes += _left_out(topology, above)
    if not given:
        outer: list[Level] = []
    elif imported.are_rates_guessed:
        scale_out = above[0] if above else _port(topology)
        notes.append(
            _taken(scale_out, topology) if scale_out else _guess(imported, topology)
        )
        outer = list(_as_machine(given, scale_out or _guessed(given[0], topology)))
    else:
        scale_out = above[0] if above else None
        outer = list(_shared_out(given, scale_out, topology))
        notes.append(_latencies(outer, scale_out, topology))
    levels = [level.model_dump() for level in (*inside, *outer)]
    return Imported({"levels": levels}, tuple(notes))


def _level(**fields: Any) -> Level:
    """Return a level.

    Raises:
        SpecError: its size or bandwidth is out of range.
    """
    try:
        return Level.model_validate(fields)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        field = ".".join(map(str, detail["loc"]))
        told = detail["msg"].removeprefix("Value error, ")
        value = detail["input"]
        text = f"level {fields['name']}: {field}: {value!r}: {told}"
        raise SpecError(text) from None


def _split(topology: Topology) -> tuple[Sequence[Level], Sequence[ScaleOut]]:
    """Return the levels inside a machine, and those above it in its topology."""
    if topology.nodes:
        return (), topology.above
    split = split_levels(topology.levels, _gpus(topology))
    inside = len(split[0]) if split else len(topology.levels)
    return topology.levels[:inside], topology.above[inside:]


def _gpus(topology: Topology) -> int:
    gpus = sum(node.kind == "gpu" for node in topology.nodes)
    return gpus or Cluster.model_construct(topology=topology).gpus_per_host


def _nics(topology: Topology) -> int:
    return sum(node.kind == "nic" for node in topology.nodes)


def _port(topology: Topology) -> ScaleOut | None:
    """Return uplinks as wide as the ports of NICs, where their bandwidth is known."""
    rates = [n.gb_s for n in topology.nodes if n.kind == "nic" and n.gb_s]
    if not rates:
        return None
    latency_us = UPPER_LATENCY_US
    return ScaleOut(
        name="port", gb_s=max(rates), latency_us=latency_us, uplink="per_nic"
    )


def _guess(imported: Imported, topology: Topology) -> str:
    """Return the note on assumed speeds, per NIC where the machine has NICs."""
    holder = "per NIC" if topology.nodes else "per GPU"
    return imported.guess.replace("per GPU", holder)


def _guessed(level: Level, topology: Topology) -> ScaleOut:
    """Return uplinks with the speed that was assumed for a level."""
    uplink = "per_nic" if topology.nodes else "per_gpu"
    return ScaleOut(**level.model_dump(exclude={"size"}) | {"uplink": uplink})


def _as_machine(given: Sequence[Level], scale_out: ScaleOut) -> Iterator[Level]:
    """Yield levels with the uplinks of a machine; switches have as many up as down."""
    machines = 1
    for index, level in enumerate(given):
        yield _level(
            name=level.name,
            size=level.size,
            gb_s=scale_out.gb_s * (machines if scale_out.uplink == "shared" else 1),
            latency_us=UPPER_LATENCY_US if index else scale_out.latency_us,
            uplink=scale_out.uplink,
        )
        machines *= level.size


def _shared_out(
    given: Sequence[Level], scale_out: ScaleOut | None, topology: Topology
) -> Iterator[Level]:
    """Yield levels whose bandwidth, a sum over cables, is divided among uplinks."""
    uplink = (
        scale_out.uplink if scale_out else ("per_nic" if topology.nodes else "shared")
    )
    below = 1
    for index, level in enumerate(given):
        holders = {"per_gpu": _gpus(topology) * below, "per_nic": _nics(topology)}
        own_uplink = "shared" if index and uplink == "per_nic" else uplink
        first_us = scale_out.latency_us if scale_out else level.latency_us
        yield _level(
            name=level.name,
            size=level.size,
            gb_s=level.gb_s / holders.get(own_uplink, 1),
            latency_us=UPPER_LATENCY_US if index else first_us,
            uplink=own_uplink,
        )
        below *= level.size


def _left_out(topology: Topology, above: Sequence[ScaleOut]) -> Iterator[str]:
    """Yield a note on the levels that those of the file replace."""
    if len(above) > 1:
        names = ", ".join(level.name for level in above)
        yield f"Levels {names} of {topology.name} are replaced by those of the file."


def _taken(scale_out: ScaleOut, topology: Topology) -> str:
    return (
        f"The file has no speeds: machines are assumed to have the uplinks of "
        f"{topology.name} ({scale_out.gb_s:g} GB/s {scale_out.uplink}, "
        f"{scale_out.latency_us:g} us), and switches as many up as down, "
        f"{UPPER_LATENCY_US:g} us each."
    )


def _latencies(
    outer: Sequence[Level], scale_out: ScaleOut | None, topology: Topology
) -> str:
    source = f"as in {topology.name}" if scale_out else "an estimate"
    return (
        f"The file has no latencies: {outer[0].latency_us:g} us up to {outer[0].name} "
        f"({source}) and {UPPER_LATENCY_US:g} us for each level above are assumed."
    )
