"""Random plans of small models, legal or not, and the rules that they break."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import meshwright as mw
from meshwright.exports.target import target as target_named
from meshwright.plans.plan import Stage
from meshwright.plans.rule import broken
from meshwright.plans.skeletons import to_row
from meshwright.rules.legality import degree_rules, plan_rules
from meshwright.rules.sums import split_rules
from meshwright.spec.plan_fields import AXES, OFFLOADS, RECOMPUTE_MODES, SCHEDULES
from meshwright.topology.routed_fabric import build_fabric

SHAPES = ((8, 8, 2, 512), (12, 12, 4, 768), (6, 8, 8, 500))
"""Layers, heads, KV heads and inner width of the models drawn."""

HOSTS = (1, 2, 3)
"""Hosts of eight GPUs."""

UNPRICED = "not priced here"
"""How a rule's source says that the framework launches more than has a price."""

BATCHES = (48, 64, 96)
SEQUENCES = (512, 516, 768)


class Misfit(mw.Plan):
    """A plan whose degrees do not multiply to the GPUs that its mesh fills."""

    @property
    def world_size(self) -> int:
        """Return the number of GPUs that are started."""
        return math.prod(math.prod(factors) for factors in self.mesh.values())


@dataclass(frozen=True)
class Drawn:
    """A spec, a plan of it, and the rules that the plan breaks."""

    spec: mw.Spec
    plan: mw.Plan
    broken: tuple[str, ...]
    """Names of rules, and fields that the target cannot be told."""
    is_unpriced: bool = False
    """Whether the rules say that the framework launches it, and nothing prices it."""


def draws(framework: str, target: str, seed: int) -> Iterator[Drawn]:
    """Yield random plans of a framework without end, each with what it breaks."""
    source = random.Random(seed)
    specs = [*_specs(framework)]
    while True:
        spec = source.choice(specs)
        plan = _plan(spec, source)
        sources = dict(_broken(spec, plan, target))
        is_unpriced = bool(sources) and all(UNPRICED in one for one in sources.values())
        yield Drawn(spec, plan, tuple(sources), is_unpriced)


def _broken(spec: mw.Spec, plan: mw.Plan, target: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each broken rule or refused field, and where it was read."""
    yield from (
        (split_rule.rule, split_rule.source) for split_rule in split_rules(spec, plan)
    )
    if isinstance(plan, Misfit):
        yield "world_size", ""
        return
    rows, _ = to_row(build_fabric(spec.cluster), plan)
    rules = [*degree_rules(spec), *plan_rules(spec)]
    yield from ((one.rule, one.source) for one in broken(rules, spec, rows))
    refused = target_named(target).refusals(spec, plan)
    yield from ((one.field, one.check) for one in refused)


def _specs(framework: str) -> Iterator[mw.Spec]:
    """Yield the specs that plans are drawn for; memory is never short."""
    for layers, heads, kv_heads, d_ff in SHAPES:
        model = {
            "name": "tiny",
            "n_layers": layers,
            "d_model": 32 * heads,
            "n_heads": heads,
            "n_kv_heads": kv_heads,
            "d_ff": d_ff,
            "vocab": 1024,
            "gated_mlp": True,
            "norm": "rmsnorm",
            "bias": "none",
            "tied_embeddings": False,
        }
        for hosts, batch, sequence in zip(HOSTS, BATCHES, SEQUENCES, strict=True):
            spec = {
                "model": model,
                "cluster": {"topology": "dgx-h100", "count": hosts},
                "framework": framework,
                "training": {"seq_len": sequence, "global_batch": batch},
            }
            yield mw.load(spec, mw.Spec)


def _plan(spec: mw.Spec, source: random.Random) -> mw.Plan:
    """Return a plan; most of its fields are plain, so that it breaks few rules."""

    def seldom(usual: Any, *others: Any) -> Any:
        return source.choice(others) if others and source.random() < 0.2 else usual

    degrees = _degrees(spec.cluster.gpus, source)
    mesh = _mesh(degrees, (8, spec.cluster.gpus // 8))
    degrees = seldom(degrees, _misfit(degrees, source))
    dp = degrees["dp_shard"] * degrees["dp_replicate"]
    per_rank = max(spec.training.global_batch // dp, 1)
    micro_batch = source.choice(
        [n for n in (1, 2, 3, 4) if seldom(per_rank % n == 0, True)]
    )
    split = degrees["pp"] > 1
    recompute = seldom("none", *RECOMPUTE_MODES)
    values: dict[str, Any] = {
        **degrees,
        "vpp": seldom(1, *_chunks(spec.model.n_layers, degrees["pp"])) if split else 1,
        "micro_batch": micro_batch,
        "microbatches": max(per_rank // micro_batch, 1),
        "zero": source.choice(_zero_stages(degrees)),
        "sequence_parallel": seldom(degrees["tp"] > 1, False) and degrees["tp"] > 1,
        "recompute": recompute,
        "schedule": seldom("1f1b", *SCHEDULES) if split else "1f1b",
        "offload": seldom("none", *OFFLOADS),
        "stages": _stages(spec, degrees["pp"], recompute, source),
        "mesh": mesh,
    }
    is_whole = math.prod(degrees.values()) == spec.cluster.gpus
    return (mw.Plan if is_whole else Misfit)(**values)


def _degrees(gpus: int, source: random.Random) -> dict[str, int]:
    """Return degrees that use all GPUs, most of them data parallel."""
    degrees, left = dict.fromkeys(AXES, 1), gpus
    for axis in source.sample(("tp", "cp", "pp", "dp_replicate"), 4):
        if source.random() < 0.35:
            degrees[axis] = source.choice([n for n in range(1, 9) if left % n == 0])
            left //= degrees[axis]
    rest = (
        "dp_shard" if source.random() < 0.8 else source.choice(("dp_replicate", "tp"))
    )
    degrees[rest] *= left
    return degrees


def _chunks(layers: int, pp: int) -> list[int]:
    """Return the numbers of equal chunks that stages of equal layers fall into."""
    return [n for n in (2, 3) if layers % (pp * n) == 0]


def _zero_stages(degrees: dict[str, int]) -> tuple[int, ...]:
    """Return the ZeRO stages that differ: without shards there is one alone."""
    if degrees["dp_shard"] > 1:
        return 1, 2, 3
    may_shard = degrees["dp_replicate"] == 1 and degrees["cp"] > 1
    return (0, 1, 2, 3) if may_shard else (0,)


def _misfit(degrees: dict[str, int], source: random.Random) -> dict[str, int]:
    """Return degrees of which one is another number than the mesh has GPUs for."""
    axis = source.choice(AXES)
    return degrees | {axis: degrees[axis] + source.choice((1, 2))}


def _mesh(degrees: dict[str, int], sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return a mesh that fills hosts with the axes in their order."""
    room, factors = [*sizes], {}
    for axis in AXES:
        left, found = degrees[axis], []
        for level, free in enumerate(room):
            found.append(math.gcd(left, free))
            left //= found[-1]
            room[level] //= found[-1]
        factors[axis] = tuple(found)
    return factors


def _stages(
    spec: mw.Spec, pp: int, recompute: str, source: random.Random
) -> tuple[Stage, ...]:
    """Return stages with nearly equal layers, of which all or some are recomputed."""
    every, more = divmod(spec.model.n_layers, pp)
    counts = [max(every + (stage < more), 1) for stage in range(pp)]
    has_all = source.random() < 0.5
    recomputed = [
        0 if recompute == "none" else count if has_all else source.randint(1, count)
        for count in counts
    ]
    pairs = zip(counts, recomputed, strict=True)
    return tuple(Stage(layers=n, recompute_layers=r) for n, r in pairs)
