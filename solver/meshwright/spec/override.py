"""Overrides: what of a cluster is down, or slower than its topology says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from meshwright.spec.base import CountOrNone, Name, Problem, SpecModel, refuse
from meshwright.spec.links import Link, Node, Pair, some
from meshwright.spec.units import RATE_OR_ZERO, GBPerS

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
