"""The candidate plans of a run: those that its publication leaves possible."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from meshwright.evidence.assumptions import Assumptions, Unpriced
from meshwright.evidence.layout import Layout, layout_of
from meshwright.evidence.published_terms import Recompute, modules_of, recompute_of
from meshwright.evidence.run import Run
from meshwright.plans.plan import Plan, Stage
from meshwright.spec.divisors import divisors
from meshwright.spec.plan_fields import AXES
from meshwright.spec.spec import Spec

_GROUP = re.compile(r"shard group (\d{1,9})")


@dataclass(frozen=True)
class Choice:
    """Plan fields that a publication may leave out, and that memory narrows down."""

    shard: int
    recompute: Recompute
    micro_batch: int


@dataclass(frozen=True)
class Candidate:
    """A plan that a run may have used, and what it assumes."""

    plan: Plan
    noted: dict[str, object]


def candidates(run: Run, spec: Spec, assumed: Assumptions) -> Iterator[Candidate]:
    """Yield the plans that a run may have used.

    They are ordered from small to large shards, from no to full recomputation, and from
    large to small micro-batches. Since the run fitted in memory, the first plan that
    fits is taken for the one that ran.

    Raises:
        Unpriced: the published layout is incomplete or contradicts itself.
    """
    layout = layout_of(run, spec, assumed)
    shards = _shards(run, spec, layout)
    modes = recompute_of(run)
    micro_batches = _micro_batches(run, spec, layout)
    for options in product(shards, modes, micro_batches):
        choice = Choice(*options)
        noted: dict[str, object] = {}
        if len(shards) > 1:
            noted["config.fsdp (shard group)"] = choice.shard
        if run.config.recompute is None:
            noted["config.recompute"] = str(choice.recompute)
        if run.config.micro_batch is None:
            noted["config.micro_batch"] = choice.micro_batch
        yield Candidate(_plan(spec, layout, choice), noted)


def _shards(run: Run, spec: Spec, layout: Layout) -> list[int]:
    """Return the possible numbers of ranks that shard state, least first."""
    config, dp = run.config, layout.dp
    if not layout.zero:
        return [1]
    if config.optimizer_shard_group:
        return [math.gcd(dp, config.optimizer_shard_group)]
    if found := _GROUP.search(config.fsdp or ""):
        return [math.gcd(dp, int(found[1]))]
    if "hybrid" in (config.fsdp or "") or "+DP" in (config.fsdp or ""):
        node = math.gcd(dp, spec.cluster.fan_outs[0])
        return [size for size in divisors(dp) if size % node == 0 and size > 1]
    return [dp]


def _micro_batches(run: Run, spec: Spec, layout: Layout) -> list[int]:
    """Return the possible micro-batches of a run, largest first.

    Where none is published: one sequence with a pipeline, which keeps it full; without
    a pipeline all powers of two.
    """
    replica_batch, rest = divmod(spec.training.global_batch, layout.dp)
    micro_batch = run.config.micro_batch
    if rest or replica_batch % (micro_batch or 1):
        multiple = layout.dp * (micro_batch or 1)
        batch = spec.training.global_batch
        raise Unpriced(f"config.global_batch: {batch} is not a multiple of {multiple}")
    count = replica_batch // (micro_batch or 1)
    if layout.vpp > 1 and count % layout.pp:
        raise Unpriced(
            f"config.vp: {count} micro-batches do not fill {layout.pp} stages"
        )
    if micro_batch:
        return [micro_batch]
    if layout.pp > 1:
        return [1]
    return [
        size for size in reversed(divisors(replica_batch)) if size & (size - 1) == 0
    ]


def _plan(spec: Spec, layout: Layout, choice: Choice) -> Plan:
    recompute, shard = choice.recompute, choice.shard
    degrees = {
        "tp": layout.tp,
        "cp": layout.cp,
        "dp_shard": shard,
        "dp_replicate": layout.dp // shard,
        "pp": layout.pp,
    }
    return Plan(
        tp=layout.tp,
        cp=layout.cp,
        dp_shard=shard,
        dp_replicate=layout.dp // shard,
        pp=layout.pp,
        ep=layout.ep,
        vpp=layout.vpp,
        micro_batch=choice.micro_batch,
        microbatches=spec.training.global_batch // (layout.dp * choice.micro_batch),
        zero=layout.zero,
        sequence_parallel=layout.sequence_parallel,
        recompute=recompute.mode,
        recompute_modules=modules_of(spec, recompute),
        schedule=layout.schedule,
        precision=spec.training.precision,
        stages=tuple(
            Stage(layers=n, recompute_layers=recompute.layers(n)) for n in layout.stages
        ),
        mesh=_mesh(spec.cluster.fan_outs, degrees),
    )


def _mesh(
    sizes: tuple[int, ...], degrees: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the mesh in the rank order of Megatron: tp innermost, then cp, dp, pp."""
    left, mesh = list(sizes), {axis: [1] * len(sizes) for axis in AXES}
    for axis in AXES:
        wanted = degrees[axis]
        for level in range(len(sizes)):
            factor = math.gcd(wanted, left[level])
            mesh[axis][level] = factor
            left[level] //= factor
            wanted //= factor
        if wanted > 1:
            raise Unpriced(f"config: {axis} {degrees[axis]} does not map onto nodes")
    return {axis: tuple(factors) for axis, factors in mesh.items()}
