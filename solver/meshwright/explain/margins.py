"""What a little more of something is worth, each by solving again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from meshwright.explain.data import Change
from meshwright.plan import Outcome
from meshwright.spec.cluster import Cluster
from meshwright.spec.links import ScaleOut
from meshwright.spec.spec import Spec

L = TypeVar("L", bound=ScaleOut)

MORE = 1.1
"""Memory and links are widened by a tenth."""


def marginal_values(spec: Spec, solve: Callable[[Spec], Outcome]) -> Iterator[Change]:
    """Yield what a tenth more memory or bandwidth brings, a machine more, longer."""
    for change, changed in (*_hardware(spec), *_job(spec)):
        best = solve(changed).best
        yield Change(
            change=change,
            step_s=best.step_s if best else None,
            tokens_per_s_per_gpu=best.tokens_per_s_per_gpu if best else None,
        )


def _hardware(spec: Spec) -> Iterator[tuple[str, Spec]]:
    limits = {"memory_gib": spec.usable_gib * MORE}
    more = {"limits": spec.limits.model_copy(update=limits)}
    yield "memory +10 %", spec.model_copy(update=more)
    cluster = spec.cluster
    if cluster.parts or cluster.topology.nodes:
        return
    topology = cluster.topology
    for index, level in enumerate(topology.levels):
        levels = list(topology.levels)
        levels[index] = _wider(level)
        wider = topology.model_copy(update={"levels": tuple(levels)})
        yield (
            f"{level.name} +10 %",
            _on(spec, Cluster(topology=wider, count=cluster.count)),
        )
    if topology.scale_out is None:
        return
    if cluster.count > 1:
        wider = topology.model_copy(update={"scale_out": _wider(topology.scale_out)})
        name = f"{topology.scale_out.name} +10 %"
        yield name, _on(spec, Cluster(topology=wider, count=cluster.count))
    one_more = Cluster(topology=topology, count=cluster.count + 1)
    yield "one machine more", _on(spec, one_more)


def _wider(level: L) -> L:
    return level.model_copy(update={"gb_s": level.gb_s * MORE})


def _on(spec: Spec, cluster: Cluster) -> Spec:
    return spec.model_copy(update={"cluster": cluster})


def _job(spec: Spec) -> Iterator[tuple[str, Spec]]:
    training = spec.training
    known = spec.model.learned_positions
    if not known or 2 * training.seq_len <= known:
        twice = training.model_copy(update={"seq_len": 2 * training.seq_len})
        yield "sequence x 2", spec.model_copy(update={"training": twice})
    twice = training.model_copy(update={"global_batch": 2 * training.global_batch})
    yield "batch x 2", spec.model_copy(update={"training": twice})
