"""A spec on a cluster that differs from its own in one thing."""

from __future__ import annotations

from typing import TypeVar

from meshwright.spec.cluster import Cluster
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Topology

Q = TypeVar("Q", Spec, ServingSpec)


def with_topology(spec: Q, topology: Topology) -> Q:
    """Return a spec on as many copies of another topology.

    Raises:
        ValidationError: they are no cluster.
    """
    return _on(spec, topology, spec.cluster.count)


def with_count(spec: Q, count: int) -> Q:
    """Return a spec on another number of copies of its topology.

    Raises:
        ValidationError: they are no cluster.
    """
    return _on(spec, spec.cluster.topology, count)


def _on(spec: Q, topology: Topology, count: int) -> Q:
    overrides = spec.cluster.overrides
    cluster = Cluster(topology=topology, count=count, overrides=overrides)
    return spec.model_copy(update={"cluster": cluster})
