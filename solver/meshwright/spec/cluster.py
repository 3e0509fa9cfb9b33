"""The `cluster` section: a GPU, and the links that join many of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from meshwright.spec.base import (
    Count,
    CountOrNone,
    Name,
    Peak,
    Problem,
    Share,
    SpecModel,
    refuse,
)
from meshwright.spec.host import Host
from meshwright.spec.units import GBPerS, GiB, Micros

Precision = Literal["bf16", "fp16", "fp8", "tf32", "fp32"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""In the order of the codes of the precision column."""

MAX_GPUS = 1_000_000
MAX_LEVELS = 6
MAX_NODES = 2_000


class PeakTflops(SpecModel):
    """Dense matmul peak by precision, TFLOP/s; left out where the GPU has none."""

    fp8: Peak | None = None
    bf16: Peak | None = None
    fp16: Peak | None = None
    tf32: Peak | None = None
    fp32: Peak | None = None

    @property
    def known(self) -> tuple[str, ...]:
        """Return the precisions that the GPU has."""
        return tuple(name for name, peak in self if peak is not None)

    def flops(self, precision: Precision) -> float:
        """Return a known peak in FLOP/s."""
        return float(getattr(self, precision)) * 1e12

    @model_validator(mode="after")
    def _check_any(self) -> PeakTflops:
        if self.fp8 is not None and self.bf16 is None:
            raise ValueError("expected a peak for bf16 beside fp8: attention has it")
        if not self.known:
            raise ValueError("expected a peak for one of bf16, fp16, tf32, fp32")
        return self


class Gpu(SpecModel):
    """One GPU, as its vendor rates it; bundled ones are in topologies/gpus."""

    name: Name = "inline"
    memory_gib: GiB = Field(description="Memory that nvidia-smi reports as total.")
    memory_gb_s: GBPerS = Field(description="HBM bandwidth.")
    peak_tflops: PeakTflops
    matmul_share: Share = Field(
        0.8, description="Of the peak that the best measured matmul reaches."
    )
    matmul_share_fp8: Share = Field(0.72, description="The same of the fp8 peak.")
    peer_links: CountOrNone | None = Field(
        None, description="NVLinks or Infinity Fabric links of the GPU; 0 if none."
    )
    peer_link_gb_s: GBPerS | None = Field(
        None, description="Bandwidth of one of those per direction."
    )
    pcie_gb_s: GBPerS | None = Field(
        None, description="What copies over its PCIe port reach, per direction."
    )


class ScaleOut(SpecModel):
    """A switch over equal children, each with an uplink to it."""

    name: Name = Field(description="Names the links of this level.")
    gb_s: GBPerS = Field(description="Bandwidth of an uplink per direction.")
    latency_us: Micros = Field(description="Latency of one traversal of an uplink.")
    uplink: Literal["per_gpu", "shared"] = Field(
        "per_gpu",
        description="per_gpu: each GPU below a child has its own uplink; "
        "shared: the child has one.",
    )


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


def _as_pair(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2 or value[0] == value[1]:
        raise ValueError("expected a list of the names of two nodes")
    return value


class Link(SpecModel):
    """An edge of an explicit graph, the same in both directions."""

    between: Annotated[tuple[Name, Name], BeforeValidator(_as_pair)] = Field(
        description="The names of two nodes."
    )
    gb_s: GBPerS = Field(description="Bandwidth per direction.")
    latency_us: Micros = Field(description="Latency of one traversal.")


class Topology(SpecModel):
    """A cluster: nested `levels` (innermost first), or `nodes` and `links`."""

    name: Name = "inline"
    gpu: Gpu
    levels: tuple[Level, ...] = ()
    scale_out: ScaleOut | None = Field(
        None, description="The level that joins `count` copies of this topology."
    )
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()
    host: Host | None = Field(
        None, description="The machine around the GPUs; without, no offload."
    )

    @model_validator(mode="after")
    def _check_one_form(self) -> Topology:
        if bool(self.levels) == bool(self.nodes):
            given = "both are" if self.levels else "neither is"
            raise ValueError(f"expected levels, or nodes and links; {given} given")
        refuse(self._stray_fields())
        return self

    def _stray_fields(self) -> Iterable[Problem]:
        if self.levels and self.links:
            sentence = "given, but levels already join the GPUs; accepted: none"
            yield Problem(("links",), len(self.links), sentence)
        if self.nodes and self.scale_out:
            yield Problem(
                ("scale_out",),
                self.scale_out.name,
                "joins levels, not nodes; add links",
            )
        if len(self.levels) > MAX_LEVELS:
            sentence = f"given; accepted: up to {MAX_LEVELS}"
            yield Problem(("levels",), len(self.levels), sentence)
        if len(self.nodes) > MAX_NODES:
            sentence = f"given; accepted: up to {MAX_NODES:,}"
            yield Problem(("nodes",), len(self.nodes), sentence)

    @model_validator(mode="after")
    def _check_graph(self) -> Topology:
        refuse(_broken_names(self.nodes, self.links))
        if self.nodes:
            refuse(_broken_graph(self.nodes, self.links))
        return self


def _broken_names(
    nodes: tuple[Node, ...], links: tuple[Link, ...]
) -> Iterable[Problem]:
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
                yield Problem(path, end, sentence + _some(list(counts)))
        if pairs[frozenset(link.between)] > 1:
            yield Problem(path, list(link.between), "are linked twice; add up gb_s")


def _broken_graph(
    nodes: tuple[Node, ...], links: tuple[Link, ...]
) -> Iterable[Problem]:
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


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


class Cluster(SpecModel):
    """A topology and how many of it."""

    topology: Topology
    count: Count = 1

    @model_validator(mode="after")
    def _check_count(self) -> Cluster:
        name = self.topology.name
        if self.count > 1 and self.topology.scale_out is None:
            sentence = (
                f"copies, but {name!r} has no scale_out to join them; accepted: 1"
            )
            refuse([Problem(("count",), self.count, sentence)])
        if self.gpus > MAX_GPUS:
            sentence = f"make {self.gpus:,} GPUs; accepted: up to {MAX_GPUS:,}"
            sizes = [level.size for level in self.levels]
            path = ("count",) if self.count > 1 else ("topology", "levels")
            refuse([Problem(path, sizes, sentence)])
        refuse(self._broken_host())
        return self

    def _broken_host(self) -> Iterable[Problem]:
        host = self.topology.host
        if host is not None and self.gpus % self.gpus_per_host:
            sentence = f"does not divide the {self.gpus:,} GPUs of the cluster"
            path = ("topology", "host", "gpus")
            yield Problem(path, self.gpus_per_host, sentence)

    @property
    def gpus_per_host(self) -> int:
        """Return the GPUs that share a host: those of the innermost level if unsaid."""
        host = self.topology.host
        return (host.gpus if host else None) or self.fan_outs[0]

    @property
    def gpus(self) -> int:
        """Return how many GPUs there are."""
        if self.topology.nodes:
            return sum(node.kind == "gpu" for node in self.topology.nodes)
        return math.prod(level.size for level in self.levels)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return the levels, innermost first, the scale-out level last."""
        top = self.topology.scale_out
        if self.count == 1 or top is None:
            return self.topology.levels
        return (*self.topology.levels, Level(**top.model_dump(), size=self.count))

    @property
    def fan_outs(self) -> tuple[int, ...]:
        """Return the size of each level; GPUs per host and hosts for nodes.

        Nodes are one level where their hosts hold unequal numbers of GPUs.
        """
        if not self.topology.nodes:
            return tuple(level.size for level in self.levels)
        hosts = Counter(n.host for n in self.topology.nodes if n.kind == "gpu")
        sizes = set(hosts.values())
        if len(sizes) == 1 and len(hosts) > 1:
            return (sizes.pop(), len(hosts))
        return (self.gpus,)
