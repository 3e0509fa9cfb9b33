"""The parts of a cluster: one machine, or a tree of switches over many.

Machines are levels of links, or graphs of nodes and links; overrides say which links
and GPUs are down or slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from meshwright.reading.document import FieldPath
from meshwright.spec.base import (
    Count,
    CountOrNone,
    Name,
    Problem,
    SpecModel,
    number,
    refuse,
)
from meshwright.spec.gpu import Gpu
from meshwright.spec.units import RATE_OR_ZERO, GBPerS, GiB, Micros

NEEDS_NICS = "needs nodes of kind nic; accepted: per_gpu, shared"
"""The message on uplinks per NIC where the topology has no NIC."""


USUAL_BUS_SHARE = 0.80
"""Share of the rate of most links that collectives reach: 230 to 240 of 300 GB/s over
eight A100 in nccl-tests. `cost.job` has the same default."""

BusShare = Annotated[float, number("from 0.0001 to 2", lambda x: 1e-4 <= x <= 2)]
"""A share of a rate; switches that add up lift it above 1."""


def _bus_share() -> Any:
    return Field(
        USUAL_BUS_SHARE,
        description="Share of gb_s that collectives reach: the bus bandwidth that "
        "nccl-tests measures for large messages, over the rate.",
    )


def effective_gb_s(gb_s: float, bus_share: float) -> float:
    """Return the rate of a link of the usual share that is as fast as this one.

    Efficiencies have one share for all links. A link that collectives fill less or
    more than most counts as one that is slower or faster.
    """
    return gb_s * (bus_share / USUAL_BUS_SHARE)


class ScaleOut(SpecModel):
    """A switch over equal children, each with uplinks to it."""

    name: Name = Field(description="Names the links of this level.")
    gb_s: GBPerS = Field(description="Bandwidth of an uplink per direction.")
    latency_us: Micros = Field(description="Latency of one traversal of an uplink.")
    uplink: Literal["per_gpu", "shared", "per_nic"] = Field(
        "per_gpu",
        description="per_gpu: each GPU below a child has its own uplink; "
        "shared: the child has one; per_nic: each NIC, where nodes have them.",
    )
    bus_share: BusShare = _bus_share()

    def uplinks(self, gpus: int, nics: int = 0) -> int:
        """Return how many uplinks a child with so many GPUs and NICs has."""
        return {"per_gpu": gpus, "per_nic": nics, "shared": 1}[self.uplink]

    @property
    def effective_gb_s(self) -> float:
        """Return the rate that counts in collectives, see `effective_gb_s`."""
        return effective_gb_s(self.gb_s, self.bus_share)

    def gb_s_per_gpu(self, gpus: int, nics: int = 0) -> float:
        """Return the share of a GPU in the uplinks of such a child, per direction."""
        return self.gb_s / (gpus / self.uplinks(gpus, nics))


class Level(ScaleOut):
    """One level of a tree of switches: `size` children under each switch."""

    size: Count = Field(description="Children of each switch.")


class Node(SpecModel):
    """A vertex of an explicit graph."""

    name: Name = Field(description="How links refer to it.")
    kind: Literal["gpu", "nic", "switch"] = Field(
        "gpu", description="A switch may be a CPU too: whatever traffic passes."
    )
    host: CountOrNone = Field(0, description="The machine that a GPU sits in.")
    gb_s: GBPerS | None = Field(
        None, description="Of a NIC: its port's bandwidth, where that is known."
    )


def as_pair(value: Any) -> Any:
    """Refuse a value that is not the names of two different nodes."""
    if not isinstance(value, list | tuple) or len(value) != 2 or value[0] == value[1]:
        raise ValueError("expected a list of the names of two nodes")
    return value


Pair = Annotated[tuple[Name, Name], BeforeValidator(as_pair)]
"""The names of two nodes."""


class Link(SpecModel):
    """An edge of an explicit graph, the same in both directions."""

    between: Pair = Field(description="The names of two nodes.")
    gb_s: GBPerS = Field(description="Bandwidth per direction.")
    latency_us: Micros = Field(description="Latency of one traversal.")
    bus_share: BusShare = _bus_share()


def broken_names(nodes: tuple[Node, ...], links: tuple[Link, ...]) -> Iterable[Problem]:
    """Yield names that two nodes have, and links that name no node or a pair twice."""
    counts = Counter(node.name for node in nodes)
    for index, node in enumerate(nodes):
        if counts[node.name] > 1:
            yield Problem(("nodes", index, "name"), node.name, "names two nodes")
    pairs = Counter(frozenset(link.between) for link in links)
    for index, link in enumerate(links):
        path = ("links", index, "between")
        for end in link.between:
            if end not in counts:
                sentence = "is not among the nodes; accepted: "
                yield Problem(path, end, sentence + some(list(counts)))
        if pairs[frozenset(link.between)] > 1:
            yield Problem(path, list(link.between), "are linked twice; add up gb_s")


def broken_graph(nodes: tuple[Node, ...], links: tuple[Link, ...]) -> Iterable[Problem]:
    """Yield the nodes that no chain of links joins to the first GPU."""
    first = next((node.name for node in nodes if node.kind == "gpu"), None)
    if first is None:
        yield Problem(("nodes",), len(nodes), "given, but none of kind gpu")
        return
    reached = _reachable(first, links)
    for index, node in enumerate(nodes):
        if node.name not in reached:
            sentence = f"is joined to {first!r} by no chain of links"
            yield Problem(("nodes", index, "name"), node.name, sentence)


def _reachable(start: str, links: tuple[Link, ...]) -> set[str]:
    neighbours: dict[str, list[str]] = {}
    for a, b in (link.between for link in links):
        neighbours.setdefault(a, []).append(b)
        neighbours.setdefault(b, []).append(a)
    reached, waiting = {start}, [start]
    while waiting:
        found = set(neighbours.get(waiting.pop(), ())) - reached
        reached |= found
        waiting += found
    return reached


def some(names: list[str], most: int = 8) -> str:
    """Return the first of many names, for a sentence."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


class Host(SpecModel):
    """One host; without this section nothing is offloaded."""

    gpus: Count | None = Field(
        None, description="GPUs of a host; default the size of the innermost level."
    )
    memory_gib: GiB = Field(description="Memory of a host.")
    pcie_gb_s: GBPerS = Field(
        description="What copies of one GPU reach, per direction."
    )
    memory_gb_s: GBPerS = Field(description="Rated bandwidth of a host's memory.")
    nvme_gb_s: GBPerS | None = Field(
        None, description="What the drives of a host reach, reads and writes together."
    )
    nvme_gib: GiB | None = Field(None, description="Room on the drives of a host.")

    @model_validator(mode="after")
    def _check_drives(self) -> Host:
        given = {"nvme_gb_s": self.nvme_gb_s, "nvme_gib": self.nvme_gib}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == 1:
            (name,) = given.keys() - missing
            sentence = f"without {missing[0]}; accepted: both or neither"
            refuse([Problem((name,), given[name], sentence)])
        return self


_RATE: TypeAdapter[float] = TypeAdapter(GBPerS)


def _rate_or_zero(value: Any) -> Any:
    if value in (0, "0"):
        return 0.0
    try:
        return _RATE.validate_python(value)
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"{told}; or 0 where it is down") from None


class Override(SpecModel):
    """One link or node of a host that is down or slow; a host that is down."""

    host: CountOrNone | None = Field(
        None, description="Which host, from 0; every one if left out."
    )
    link: Pair | None = Field(None, description="The names of two joined nodes.")
    node: Name | None = Field(None, description="A GPU, NIC or switch that is down.")
    gb_s: Annotated[float, BeforeValidator(_rate_or_zero), RATE_OR_ZERO] = Field(
        0.0, description="What the link still reaches per direction; 0 if it is down."
    )

    @model_validator(mode="after")
    def _check_target(self) -> Override:
        if self.link is not None and self.node is not None:
            sentence = "given beside a link; accepted: one of them"
            refuse([Problem(("node",), self.node, sentence)])
        if self.link is None and self.gb_s:
            sentence = "without a link; nodes and hosts are up or down"
            refuse([Problem(("gb_s",), self.gb_s, sentence)])
        if self.link is None and self.node is None and self.host is None:
            raise ValueError("expected link, node or host")
        return self

    @property
    def is_whole_host(self) -> bool:
        """Return whether the host itself is down."""
        return self.link is None and self.node is None

    def holds_for(self, host: int) -> bool:
        """Return whether the override applies to the host of this number."""
        return self.host is None or self.host == host


def broken_overrides(
    overrides: tuple[Override, ...],
    nodes: tuple[Node, ...],
    links: tuple[Link, ...],
    hosts: int,
) -> Iterable[Problem]:
    """Yield the overrides that name a host, a node or a link that does not exist."""
    names = [node.name for node in nodes]
    pairs = {frozenset(link.between) for link in links}
    for index, override in enumerate(overrides):
        path = ("overrides", index)
        if override.host is not None and override.host >= hosts:
            sentence = f"is no host; accepted: 0 to {hosts - 1}"
            yield Problem((*path, "host"), override.host, sentence)
        if override.node is not None and override.node not in names:
            sentence = "is not among the nodes; accepted: " + some(names, 40)
            yield Problem((*path, "node"), override.node, sentence)
        if override.link is not None and frozenset(override.link) not in pairs:
            known = ["-".join(link.between) for link in links]
            sentence = "are not joined by a link; accepted: " + some(known, 40)
            yield Problem((*path, "link"), list(override.link), sentence)


MAX_LEVELS = 6
MAX_NODES = 2_000


class Topology(SpecModel):
    """A cluster: nested `levels` (innermost first), or `nodes` and `links`.

    The nodes and links of one machine may have levels above them, which join copies of
    it by their NICs.
    """

    name: Name = Field("inline", description="For the reader.")
    gpu: Gpu
    levels: tuple[Level, ...] = Field(
        (), description="Switches inside switches, innermost first."
    )
    scale_out: ScaleOut | None = Field(
        None, description="The level that joins `count` copies of this topology."
    )
    nodes: tuple[Node, ...] = Field(
        (), description="GPUs, NICs and switches of one machine."
    )
    links: tuple[Link, ...] = Field((), description="What joins the nodes.")
    host: Host | None = Field(
        None, description="The machine around the GPUs; without, no offload."
    )

    @property
    def above(self) -> tuple[ScaleOut, ...]:
        """Return the levels that are written down, scale_out last."""
        return (*self.levels, *([self.scale_out] if self.scale_out else []))

    @model_validator(mode="after")
    def _check_form(self) -> Topology:
        if not self.levels and not self.nodes:
            raise ValueError("expected levels, or nodes and links; neither is given")
        refuse(self._stray_fields())
        refuse(self._broken_uplinks())
        return self

    def _stray_fields(self) -> Iterable[Problem]:
        if self.links and not self.nodes:
            sentence = "given, but levels already join the GPUs; accepted: none"
            yield Problem(("links",), len(self.links), sentence)
        if len(self.levels) > MAX_LEVELS:
            sentence = f"given; accepted: up to {MAX_LEVELS}"
            yield Problem(("levels",), len(self.levels), sentence)
        if len(self.nodes) > MAX_NODES:
            sentence = f"given; accepted: up to {MAX_NODES:,}"
            yield Problem(("nodes",), len(self.nodes), sentence)

    def _broken_uplinks(self) -> Iterable[Problem]:
        """Yield the levels that do not join the parts below them."""
        paths: list[FieldPath] = [("levels", i) for i in range(len(self.levels))]
        paths += [("scale_out",)] * (self.scale_out is not None)
        has_nics = any(node.kind == "nic" for node in self.nodes)
        hosts = {node.host for node in self.nodes if node.kind == "gpu"}
        for index, (path, level) in enumerate(zip(paths, self.above, strict=True)):
            by_nic = level.uplink == "per_nic"
            if self.nodes and not has_nics:
                sentence = "joins NICs, and no node is of kind nic"
                yield Problem((*path, "name"), level.name, sentence)
            elif len(hosts) > 1:
                sentence = "joins copies of one host, and the nodes have several"
                yield Problem((*path, "name"), level.name, sentence)
            elif self.nodes and index == 0 and not by_nic:
                sentence = "is for levels of GPUs; accepted above nodes: per_nic"
                yield Problem((*path, "uplink"), level.uplink, sentence)
            elif by_nic and not self.nodes:
                yield Problem((*path, "uplink"), level.uplink, NEEDS_NICS)

    @model_validator(mode="after")
    def _check_graph(self) -> Topology:
        refuse(broken_names(self.nodes, self.links))
        if self.nodes:
            refuse(broken_graph(self.nodes, self.links))
        return self
