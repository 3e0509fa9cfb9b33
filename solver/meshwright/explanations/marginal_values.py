"""What a little more of something is worth, each by solving again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from meshwright.explanations.fixed import with_memory
from meshwright.explanations.other_clusters import with_count, with_topology
from meshwright.results.explanation import Change
from meshwright.results.outcome import Outcome
from meshwright.solver.prepared import Prepared
from meshwright.spec.cluster import Cluster
from meshwright.spec.links import Level, Link, ScaleOut
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Topology

L = TypeVar("L", ScaleOut, Level, Link)

MORE = 1.1
"""Memory and links are widened by a tenth."""


class More(NamedTuple):
    """A spec with a little more of something."""

    change: str
    spec: Spec
    link_speedup: float | None = None
    """How many times as fast its links are, where its skeletons are the same."""


def marginal_values(
    spec: Spec,
    prepared: Prepared | None,
    solve: Callable[[Spec, Prepared | None], Outcome],
) -> Iterator[Change]:
    """Yield what a tenth more memory or bandwidth brings, a machine more, longer.

    `prepared` is what was prepared for the spec, if anything: more memory and wider
    links have the same lattice.
    """
    for more in (*_hardware(spec), *_job(spec)):
        start = None
        if prepared is not None and more.link_speedup is not None:
            start = prepared.on_better_hardware(more.spec, more.link_speedup)
        best = solve(more.spec, start).best
        yield Change(
            change=more.change,
            step_s=best.step_s if best else None,
            tokens_per_s_per_gpu=best.tokens_per_s_per_gpu if best else None,
        )


def _hardware(spec: Spec) -> Iterator[More]:
    yield More("memory +10 %", with_memory(spec, spec.usable_gib * MORE), 1.0)
    cluster = spec.cluster
    if cluster.parts:
        return
    for name, topology in _wider_links(cluster):
        yield More(f"{name} +10 %", with_topology(spec, topology), MORE)
    if cluster.topology.scale_out is not None:
        yield More("one machine more", with_count(spec, cluster.count + 1))


def _wider_links(cluster: Cluster) -> Iterator[tuple[str, Topology]]:
    """Yield the topology with one class of its links a tenth wider, for each class.

    A class is a level, or all links of a graph that have one bandwidth.
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


def _wider(link: L) -> L:
    return link.model_copy(update={"gb_s": link.gb_s * MORE})


def _job(spec: Spec) -> Iterator[More]:
    training = spec.training
    known = spec.model.learned_positions
    if not known or 2 * training.seq_len <= known:
        twice = training.model_copy(update={"seq_len": 2 * training.seq_len})
        yield More("sequence x 2", spec.model_copy(update={"training": twice}))
    twice = training.model_copy(update={"global_batch": 2 * training.global_batch})
    yield More("batch x 2", spec.model_copy(update={"training": twice}))
