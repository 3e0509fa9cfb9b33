"""Marginal values: what a little more memory, bandwidth, machines or work changes.

Each of them is found by solving the changed spec again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from meshwright.explanations.changed_spec import (
    with_count,
    with_memory,
    with_topology,
)
from meshwright.results.explanation import Change
from meshwright.results.outcome import Outcome
from meshwright.search.prepared import Prepared
from meshwright.spec.cluster import Cluster
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Level, Link, ScaleOut, Topology

AnyLink = TypeVar("AnyLink", ScaleOut, Level, Link)

MORE = 1.1
"""Factor by which memory and link bandwidth are raised."""


Solve = Callable[[Spec, Prepared | None], Outcome]
"""Solves a spec, from its prepared lattice if there is one."""


class ChangedSpec(NamedTuple):
    """A spec in which one thing is raised, and the change in words."""

    change: str
    spec: Spec
    link_speedup: float | None = None
    """Factor on the speed of its links; None if its lattice differs from the spec's."""


def marginal_values(
    spec: Spec,
    prepared: Prepared | None,
    solve: Solve,
) -> Iterator[Change]:
    """Yield the best step time after each change of hardware or training.

    The changes are a tenth more memory, a tenth more bandwidth of each link class, one
    machine more, twice the sequence length and twice the batch. `prepared` is the
    lattice prepared for the spec, if any, which a change of memory or links keeps.
    """
    for changed in (*_hardware_changes(spec), *_training_changes(spec)):
        start = None
        if prepared is not None and changed.link_speedup is not None:
            start = prepared.on_better_hardware(changed.spec, changed.link_speedup)
        best = solve(changed.spec, start).best
        yield Change(
            change=changed.change,
            step_s=best.step_s if best else None,
            tokens_per_s_per_gpu=best.tokens_per_s_per_gpu if best else None,
        )


def bolder_plans(spec: Spec, outcome: Outcome) -> Iterator[Change]:
    """Yield the step times at more risk than asked for, which the outcome has."""
    training = spec.training
    tokens = training.global_batch * training.seq_len
    for choice in outcome.safety:
        if choice.oom_risk > spec.limits.risk and choice.step_s is not None:
            rate = tokens / choice.step_s / outcome.gpus
            yield Change(
                change=f"oom_risk {choice.oom_risk:g}",
                step_s=choice.step_s,
                tokens_per_s_per_gpu=rate,
            )


def _hardware_changes(spec: Spec) -> Iterator[ChangedSpec]:
    yield ChangedSpec("memory +10 %", with_memory(spec, spec.usable_gib * MORE), 1.0)
    cluster = spec.cluster
    if cluster.parts:
        return
    for name, topology in _wider_links(cluster):
        yield ChangedSpec(f"{name} +10 %", with_topology(spec, topology), MORE)
    if cluster.topology.scale_out is not None:
        yield ChangedSpec("one machine more", with_count(spec, cluster.count + 1))


def _wider_links(cluster: Cluster) -> Iterator[tuple[str, Topology]]:
    """Yield, for each class of links, its name and the topology with it a tenth wider.

    A class is a level, or all links of a graph with the same bandwidth.
    """
    topology = cluster.topology
    for gb_s in sorted({link.gb_s for link in topology.links}, reverse=True):
        links = tuple(
            _wider(link) if link.gb_s == gb_s else link for link in topology.links
        )
        yield f"links of {gb_s:g} GB/s", topology.model_copy(update={"links": links})
    for index, level in enumerate(topology.levels):
        levels = list(topology.levels)
        levels[index] = _wider(level)
        yield level.name, topology.model_copy(update={"levels": tuple(levels)})
    if topology.scale_out is not None and cluster.count > 1:
        scale_out = _wider(topology.scale_out)
        yield scale_out.name, topology.model_copy(update={"scale_out": scale_out})


def _wider(link: AnyLink) -> AnyLink:
    return link.model_copy(update={"gb_s": link.gb_s * MORE})


def _training_changes(spec: Spec) -> Iterator[ChangedSpec]:
    training = spec.training
    known = spec.model.learned_positions
    if not known or 2 * training.seq_len <= known:
        twice = training.model_copy(update={"seq_len": 2 * training.seq_len})
        yield ChangedSpec("sequence x 2", spec.model_copy(update={"training": twice}))
    twice = training.model_copy(update={"global_batch": 2 * training.global_batch})
    yield ChangedSpec("batch x 2", spec.model_copy(update={"training": twice}))
