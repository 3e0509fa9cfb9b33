"""One machine, or a tree of switches over many: what a cluster is made of."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field, model_validator

from meshwright.reading.document import FieldPath
from meshwright.spec.base import Name, Problem, SpecModel, refuse
from meshwright.spec.gpu import Gpu
from meshwright.spec.host import Host
from meshwright.spec.links import (
    NEEDS_NICS,
    Level,
    Link,
    Node,
    ScaleOut,
    broken_graph,
    broken_names,
)

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
        """Yield the levels that do not join what is below them."""
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
