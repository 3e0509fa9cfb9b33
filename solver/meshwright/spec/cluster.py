"""The `cluster` section: a GPU, and the links that join many of it."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from meshwright.spec.base import Count, CountOrNone, SpecModel
from meshwright.spec.units import GBPerS, GiB, Micros

Precision = Literal["bf16", "fp16", "tf32", "fp32"]


class PeakTflops(SpecModel):
    """Dense matmul peak by precision, TFLOP/s; left out where the GPU has none."""

    bf16: float | None = Field(None, gt=0, allow_inf_nan=False)
    fp16: float | None = Field(None, gt=0, allow_inf_nan=False)
    tf32: float | None = Field(None, gt=0, allow_inf_nan=False)
    fp32: float | None = Field(None, gt=0, allow_inf_nan=False)


class Gpu(SpecModel):
    """One GPU, as its vendor rates it; bundled ones are in topologies/gpus."""

    name: str = "inline"
    memory_gib: GiB = Field(description="Memory that nvidia-smi reports as total.")
    memory_gb_s: float = Field(gt=0, allow_inf_nan=False, description="HBM bandwidth.")
    peak_tflops: PeakTflops


class ScaleOut(SpecModel):
    """A switch over equal children, each with an uplink to it."""

    name: str = Field(description="Names the links of this level.")
    gb_s: GBPerS = Field(description="Bandwidth of an uplink per direction.")
    latency_us: Micros = Field(description="Latency of one traversal of an uplink.")
    uplink: Literal["per_gpu", "shared"] = Field(
        "per_gpu",
        description="per_gpu: each GPU below a child has its own uplink; "
        "shared: the child has one.",
    )


class Level(ScaleOut):
    """One level of a tree of switches: `size` children under each switch."""

    size: Count


class Node(SpecModel):
    """A vertex of an explicit graph."""

    name: str
    kind: Literal["gpu", "switch"] = "gpu"
    host: CountOrNone = Field(0, description="The machine that a GPU sits in.")


class Link(SpecModel):
    """An edge of an explicit graph, the same in both directions."""

    between: tuple[str, str]
    gb_s: GBPerS
    latency_us: Micros


class Topology(SpecModel):
    """A cluster: nested `levels` (innermost first), or `nodes` and `links`."""

    name: str = "inline"
    gpu: Gpu
    levels: tuple[Level, ...] = ()
    scale_out: ScaleOut | None = Field(
        None, description="The level that joins `count` copies of this topology."
    )
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()

    @model_validator(mode="after")
    def _check_one_form(self) -> Topology:
        if bool(self.levels) == bool(self.nodes):
            raise ValueError("give either levels, or nodes and links")
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Topology:
        names = [node.name for node in self.nodes]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"nodes named twice: {', '.join(sorted(twice))}")
        for link in self.links:
            for end in link.between:
                if end not in names:
                    raise ValueError(f"link to {end!r}, which is not among the nodes")
        return self


class Cluster(SpecModel):
    """A topology and how many of it."""

    topology: Topology
    count: Count = 1

    @model_validator(mode="after")
    def _check_count(self) -> Cluster:
        if self.count > 1 and self.topology.scale_out is None:
            raise ValueError(
                f"count is {self.count}, but {self.topology.name} has no scale_out "
                "level to join copies; accepted: 1"
            )
        return self

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
