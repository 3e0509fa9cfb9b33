"""Ranks on the GPUs of a tree of switches, and what their messages load.

Every GPU is visited, every message of every group goes up and down its links.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

from meshwright.spec.model_parts import Experts
from tests.recomputed.case import Case

AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")

Groups = list[list[int]]
"""The GPUs of each group, in order."""

Link = tuple[int, int]
"""A level, and the number of a child of its switches: the uplinks of that child."""


class Path(NamedTuple):
    """What every group of a kind pays while all of them talk at once."""

    s_per_byte: float
    latency_s: float
    loads: dict[Link, float]
    """Seconds per byte on every link that carries some of it."""


def places(case: Case) -> list[dict[str, tuple[int, ...]]]:
    """Where each GPU stands on every axis, level by level: tp is innermost."""
    result = []
    for gpu in range(case.plan.world_size):
        place: dict[str, tuple[int, ...]] = dict.fromkeys(AXES, ())
        left = gpu
        for level, one in enumerate(case.spec.cluster.levels):
            left, digit = divmod(left, one.size)
            for axis in AXES:
                digit, at = divmod(digit, case.plan.mesh[axis][level])
                place[axis] = (*place[axis], at)
        result.append(place)
    return result


def _gathered(case: Case, key: Callable[[int], Any]) -> Groups:
    """GPUs with equal keys, in the order of their numbers."""
    found: dict[Any, list[int]] = defaultdict(list)
    for gpu in range(case.plan.world_size):
        found[key(gpu)].append(gpu)
    return list(found.values())


def groups(case: Case) -> dict[str, Groups]:
    """The groups of every kind: GPUs that differ on some axes alone."""
    at = places(case)

    def differing(*varied: str) -> Groups:
        fixed = [axis for axis in AXES if axis not in varied]
        return _gathered(case, lambda gpu: repr([at[gpu][axis] for axis in fixed]))

    return {
        "tp": differing("tp"),
        "cp": differing("cp"),
        # The state is sharded over the ranks of one sequence too.
        "dp_shard": differing("cp", "dp_shard"),
        "dp_replicate": differing("dp_replicate"),
        "pp": differing("pp"),
        **expert_groups(case),
    }


def expert_groups(case: Case) -> dict[str, Groups]:
    """Groups of experts: neighbours in the order of ranks, tp first, then cp and data.

    Liu et al. 2025, MoE Parallel Folding, section 3: ep has nothing to do with which
    ranks are tensor- or data-parallel to each other outside the experts. Only replicas
    of shards stay apart, where there are shards.
    """
    plan, at = case.plan, places(case)
    keeps_replicas = plan.dp_shard > 1 or plan.dp_replicate == 1
    data = "dp_shard" if keeps_replicas else "dp_replicate"
    # Ranks that have parts of the same experts stay apart.
    folded = ("cp", data) if plan.etp > 1 else ("tp", "cp", data)
    apart = "dp_replicate" if keeps_replicas else "dp_shard"
    expert: list[list[int]] = [[] for _ in at]
    copy: list[list[int]] = [[] for _ in at]
    left = plan.ep
    for axis in folded:
        for level, room in enumerate(plan.mesh[axis]):
            here = math.gcd(left, room)
            left //= here
            for gpu, place in enumerate(at):
                expert[gpu].append(place[axis][level] % here)
                copy[gpu].append(place[axis][level] // here)
    assert left == 1

    def alike(*names: str) -> Groups:
        keys: dict[str, list[Any]] = {
            "expert": expert,
            "copy": copy,
            "apart": [place[apart] for place in at],
            "fixed": [[place["pp"], plan.etp > 1 and place["tp"]] for place in at],
        }
        return _gathered(case, lambda gpu: repr([keys[name][gpu] for name in names]))

    shards = alike("expert", "apart", "fixed")
    replicas = alike("expert", "copy", "fixed")
    alone = [[gpu] for gpu in range(plan.world_size)]
    if not keeps_replicas:
        # Without shards all copies of an expert are replicas.
        shards, replicas = alone, shards
    return {
        "ep": alike("copy", "apart", "fixed"),
        "expert_shard": shards,
        "expert_replicate": replicas,
    }


def group_size(given: Groups) -> int:
    (size,) = {len(members) for members in given}
    return size


def paths(case: Case) -> dict[str, Path]:
    """What every kind of group pays: a ring each, but experts exchange tokens.

    So do the ranks of a sequence under Ulysses.
    """
    sent: dict[str, Sent] = {"ep": _exchange}
    if case.training.expert_dispatch == "deepep" and case.model.moe:
        sent["ep"] = partial(dispatched, case)
    if case.exchange == "ulysses":
        sent["cp"] = _exchange
    return {
        name: _path(case, group, sent.get(name, _ring), name not in {*sent, "pp"})
        for name, group in groups(case).items()
    }


Messages = Iterator[tuple[int, int, float]]
"""From which GPU to which, and how much of what each member passes on."""


def _ring(members: list[int]) -> Messages:
    for index, gpu in enumerate(members):
        yield gpu, members[(index + 1) % len(members)], 1.0


def _exchange(members: list[int]) -> Messages:
    for gpu in members:
        for other in members:
            if other != gpu:
                yield gpu, other, 1 / (len(members) - 1)


def dispatched(case: Case, members: list[int]) -> Messages:
    """Every token of every member to its experts, for every choice that it may make.

    It crosses to each node with experts of it once, to the GPU in the same place there,
    which passes it on (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.2).
    """
    moe, size = case.model.moe, len(members)
    assert moe is not None
    per_node = case.spec.cluster.levels[0].size
    at: dict[int, list[int]] = defaultdict(list)
    for gpu in members:
        at[gpu // per_node].append(gpu)
    every = choices(moe)
    copies = len(every) * moe.top_k * (size - 1) / size
    found = moe.n_experts // size
    for gpu, chosen in product(members, every):
        place = at[gpu // per_node].index(gpu)
        hit = {members[expert // found] for expert in chosen}
        for node in {other // per_node for other in hit}:
            lands = at[node][place]
            if lands != gpu:
                yield gpu, lands, 1 / copies
            for other in hit & {*at[node]} - {lands}:
                yield lands, other, 1 / copies


def choices(moe: Experts) -> list[tuple[int, ...]]:
    """All experts that a token may choose, each as often as groups allow it."""
    wide = moe.n_experts // moe.route_groups
    return [
        experts
        for groups in combinations(range(moe.route_groups), moe.groups_per_token)
        for experts in combinations(
            [group * wide + i for group in groups for i in range(wide)], moe.top_k
        )
    ]


Sent = Callable[[list[int]], Messages]


def _path(case: Case, given: Groups, messages: Sent, goes_round: bool) -> Path:
    """What messages load, and the wait for one: the mean on a byte's way round."""
    carried: dict[Link, float] = defaultdict(float)
    inside_us = outside_us = 0.0
    per_node = case.spec.cluster.levels[0].size
    for members in given:
        for start, end, part in messages(members):
            hop_us = 0.0
            for link in _way_up(case, start, end):
                carried[link] += part
                # As far down again on the other side.
                hop_us += 2 * case.spec.cluster.levels[link[0]].latency_us
            if start // per_node == end // per_node:
                inside_us = max(inside_us, hop_us)
            else:
                outside_us = max(outside_us, hop_us)
    loads = {link: part / _bytes_per_s(case, link) for link, part in carried.items()}
    latency_us = max(inside_us, outside_us)
    if goes_round and group_size(given) > 1:
        # The last hop, from the last member to the first, no byte needs.
        hops = [a // per_node == b // per_node for a, b in pairwise(given[0])]
        total_us = sum(inside_us if stays else outside_us for stays in hops)
        latency_us = total_us / len(hops)
    return Path(max(loads.values(), default=0.0), latency_us * 1e-6, loads)


def _way_up(case: Case, start: int, end: int) -> Iterator[Link]:
    """The uplinks from a GPU to the first switch that it shares with another."""
    below = 1
    for level, one in enumerate(case.spec.cluster.levels):
        if start // below == end // below:
            return
        yield level, start // below
        below *= one.size


def _bytes_per_s(case: Case, link: Link) -> float:
    """The bandwidth of all uplinks of a child together."""
    levels = case.spec.cluster.levels
    found = levels[link[0]]
    gpus_below = math.prod(level.size for level in levels[: link[0]])
    uplinks = gpus_below if found.uplink == "per_gpu" else 1
    return found.gb_s * 1e9 * uplinks
