"""A copy of a spec in which one thing is changed: cluster, memory limit or pins."""

from __future__ import annotations

from typing import TypeVar

from meshwright.spec.cluster import Cluster
from meshwright.spec.pins import Pins
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from meshwright.spec.topology import ScaleOut, Topology

AnySpec = TypeVar("AnySpec", Spec, ServingSpec)


def with_topology(spec: AnySpec, topology: Topology) -> AnySpec:
    """Return the spec on as many copies of another topology.

    Raises:
        ValidationError: those copies do not form a valid cluster.
    """
    return _on_cluster(spec, topology, spec.cluster.count)


def with_count(spec: AnySpec, count: int) -> AnySpec:
    """Return the spec on another number of copies of its topology.

    Raises:
        ValidationError: those copies do not form a valid cluster.
    """
    return _on_cluster(spec, spec.cluster.topology, count)


def _on_cluster(spec: AnySpec, topology: Topology, count: int) -> AnySpec:
    overrides = spec.cluster.overrides
    cluster = Cluster(topology=topology, count=count, overrides=overrides)
    return spec.model_copy(update={"cluster": cluster})


def with_scale_out(spec: Spec, scale_out: ScaleOut, count: int) -> Spec:
    """Return the spec on copies of its topology that a level joins.

    Raises:
        ValidationError: those copies do not form a valid cluster.
    """
    joined = spec.cluster.topology.model_copy(update={"scale_out": scale_out})
    return _on_cluster(spec, joined, count)


def with_memory(spec: AnySpec, gib: float) -> AnySpec:
    """Return the spec with `gib` as the memory that a plan may use on each GPU."""
    limits = spec.limits.model_copy(update={"memory_gib": gib})
    return spec.model_copy(update={"limits": limits})


def with_pins(spec: AnySpec, pins: Pins) -> AnySpec:
    """Return the spec with more pins, which replace its pins of the same fields."""
    given = {name: value for name, value in pins if value is not None}
    return spec.model_copy(update={"pins": spec.pins.model_copy(update=given)})
