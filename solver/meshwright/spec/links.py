"""The elements of a topology: levels of a tree, or nodes and links of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from meshwright.spec.base import Count, CountOrNone, Name, Problem, SpecModel, number
from meshwright.spec.units import GBPerS, Micros

NEEDS_NICS = "needs nodes of kind nic; accepted: per_gpu, shared"
"""The message on uplinks per NIC where the topology has no NIC."""


USUAL_BUS_SHARE = 0.80
"""Share of the rate of most links that collectives reach: 230 to 240 of 300 GB/s over
eight A100 in nccl-tests. `cost.hardware_efficiency` has the same default."""

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
