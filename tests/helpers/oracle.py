"""Brute force: every skeleton, every split of layers, every recompute count.

It shares with the solver what a plan costs (`cost/`) and what a rule is, and nothing
else: it lists plans with its own loops, and adds stages up with its own sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.job import Job, make_job
from meshwright.cost.links import link_seconds
from meshwright.cost.price import Prices, price
from meshwright.frameworks.base.framework import ALL_LAYERS, ONE_NUMBER
from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import total
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import Skeletons, Split
from meshwright.rules.legality import degree_rules, mesh_rules, plan_rules
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.plan_fields import (
    DUALPIPE_V,
    GPIPE,
    RECOMPUTE_MODES,
    WRITTEN_SETS,
    ZERO_BUBBLE_H1,
    ZERO_BUBBLE_V,
)
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB
from meshwright.topology.fabric import HostOrders, Place, free_paths
from meshwright.topology.groups import price_groups
from meshwright.topology.routed_fabric import RoutedFabric
from tests.helpers.oracle_rules import PlacedRow, keeping_user_rules

Ints = NDArray[np.int64]


NAMES = (
    "tp", "cp", "dp_shard", "dp_replicate", "pp", "micro_batch", "microbatches",
    "zero", "recompute", "recompute_modules", "recompute_segment", "schedule",
    "offload", "precision", "vpp", "ep", "mesh",
)  # fmt: skip

AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


@dataclass(frozen=True)
class Best:
    """The least step time over all plans, and how many were looked at."""

    step_s: float
    plans: int
    splits: int


def brute_force(spec: Spec) -> Best:
    """Return the least step time over every plan; infinite if none fits."""
    job = make_job(spec)
    meshes = np.array(list(_meshes(job.fabric.sizes)), dtype=np.int64)
    rows = every_row(spec, meshes, [*degree_rules(spec), *plan_rules(spec)])
    best = Best(math.inf, 0, 0)
    for order in _orders(job):
        found = _best_in_order(job, meshes, rows, order, best.step_s)
        plans, splits = best.plans + found.plans, best.splits + found.splits
        best = Best(min(best.step_s, found.step_s), plans, splits)
    return best


def _orders(job: Job) -> list[HostOrders]:
    """Return every way to seat ranks on the GPUs of the hosts of each kind."""
    if not isinstance(job.fabric, RoutedFabric):
        return [()]
    seats = list(itertools.permutations(range(job.fabric.gpus_per_host)))
    return list(itertools.product(seats, repeat=len(job.fabric.kinds)))


def _best_in_order(
    job: Job, meshes: Ints, rows: Skeletons, order: HostOrders, best: float
) -> Best:
    """Return the least step time with ranks in one order, if it is below `best`."""
    spec = job.spec
    paths = price_groups(job.fabric.placed(order), meshes[rows.mesh], rows.expert_key)
    rows = rows.on_meshes(paths, rows.mesh)
    on_mesh = mesh_rules(spec, meshes)
    rows = rows.take(np.flatnonzero(holding(on_mesh, spec, rows)))
    prices = price(job, rows)
    splits = 0
    for row in range(len(rows)):
        one, place = _one(prices, row), Place(meshes[rows.mesh[row]], order)
        layers, recomputed = _possible_splits(spec, one.rows)
        step_s = _step_s(one, layers, recomputed)
        fits = _peak_bytes(one, layers, recomputed) <= spec.usable_gib * GIB
        fits &= step_s < best
        fits &= _host_bytes(one, layers) <= _host_room_bytes(spec)
        # The fastest split is enough, unless a rule refuses it.
        most = len(layers) + 1 if spec.rules else 1
        splits_of = (layers, recomputed, step_s)
        if spec.limits.max_link_utilisation is not None:
            fits &= _links_idle(job, one, place, *splits_of, fits, most)
        if spec.rules:
            fits &= keeping_user_rules(PlacedRow(job, one, place), *splits_of, fits)
        splits += len(layers)
        best = min(best, step_s[fits].min(initial=math.inf))
    return Best(float(best), len(rows), splits)


def every_plan(
    spec: Spec,
) -> Iterator[tuple[Skeletons, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield every skeleton on a tree, with step time and peak GiB of each split.

    Only of splits that fit and keep limits and rules.
    """
    for one in every_split(spec):
        yield one.rows, one.step_s, one.peak_gib


@dataclass(frozen=True)
class Splits:
    """A skeleton with every split of its layers that fits, (splits, stages)."""

    rows: Skeletons
    layers: Ints
    recomputed: Ints
    step_s: NDArray[np.float64]
    peak_gib: NDArray[np.float64]


def every_split(spec: Spec, most_s: float = math.inf) -> Iterator[Splits]:
    """Yield every skeleton on a tree, with its splits that take no longer."""
    job = make_job(spec)
    meshes = np.array(list(_meshes(job.fabric.sizes)), dtype=np.int64)
    rows = every_row(spec, meshes, [*degree_rules(spec), *plan_rules(spec)])
    paths = price_groups(job.fabric, meshes[rows.mesh], rows.expert_key)
    rows = rows.on_meshes(paths, rows.mesh)
    rows = rows.take(np.flatnonzero(holding(mesh_rules(spec, meshes), spec, rows)))
    prices = price(job, rows)
    for row in range(len(rows)):
        one = _one(prices, row)
        layers, recomputed = _possible_splits(spec, one.rows)
        peak_gib = _peak_bytes(one, layers, recomputed) / GIB
        step_s = _step_s(one, layers, recomputed)
        fits = (peak_gib <= spec.usable_gib) & (step_s <= most_s)
        fits &= _host_bytes(one, layers) <= _host_room_bytes(spec)
        splits = (layers, recomputed, step_s)
        place, every = Place(meshes[rows.mesh[row]], ()), len(layers) + 1
        if spec.limits.max_link_utilisation is not None:
            fits &= _links_idle(job, one, place, *splits, fits, every)
        if spec.rules:
            fits &= keeping_user_rules(PlacedRow(job, one, place), *splits, fits, every)
        kept = (layers[fits], recomputed[fits], step_s[fits], peak_gib[fits])
        yield Splits(one.rows, *kept)


def _possible_splits(spec: Spec, one: Skeletons) -> tuple[Ints, Ints]:
    """Return the splits of one skeleton that its rules and pins leave."""
    layers, recomputed = _splits(
        spec.model.n_layers, int(one.pp[0]), bool(one.recompute[0])
    )
    is_alone = one.vpp[0] == 1
    possible = (layers[:, 0] >= spec.model.leading_layers) | (not is_alone)
    pinned = spec.pins.layers
    if one.vpp[0] > 1 and pinned is not None and framework_of(spec).has_uneven_chunks:
        # Pinned stages have any chunks, of which the first and the last may have none.
        ends = np.isin(np.arange(len(pinned)), (0, len(pinned) - 1))
        possible &= (layers == pinned).all(axis=1)
        possible &= bool((np.array(pinned) + ends >= one.vpp[0]).all())
    elif one.vpp[0] > 1:
        # Every chunk of a stage has as many layers as the largest, or one less.
        largest = math.ceil(spec.model.n_layers / one.pp[0])
        possible &= (layers <= largest).all(axis=1)
        possible &= (layers >= largest - one.vpp[0]).all(axis=1)
        # One dense layer after the other goes to first chunks, of the most layers. A
        # stage with a layer more than all chunks without it have one as long.
        chunk = largest // int(one.vpp[0])
        for layer in range(spec.model.first_dense_layers):
            stage, place = divmod(layer, chunk)
            possible &= layers[:, stage] > place * one.vpp[0]
    partition = framework_of(spec).partition
    if partition is not None:
        fixed = partition.layers(spec.model, int(one.pp[0]))
        possible &= (layers == fixed).all(axis=1)
    if (order := spec.model.order).period > 1:
        # Stages hold whole patterns, as many as each other; from the second on of one
        # more.
        first = np.arange(layers.shape[1]) == 0
        patterns = layers - len(order.leading) * first
        possible &= (patterns % order.period == 0).all(axis=1)
        counts = patterns // order.period
        falls = np.diff(counts[:, 1:], axis=1) <= 0
        possible &= falls.all(axis=1) & (counts[:, :1] == counts.min(1)[:, None])[:, 0]
        possible &= counts.max(axis=1) - counts.min(axis=1) <= 1
    if one.recompute[0]:
        possible &= _in_scope(spec, one, layers, recomputed)
    return layers[possible], recomputed[possible]


def _in_scope(
    spec: Spec, one: Skeletons, layers: Ints, recomputed: Ints
) -> NDArray[np.bool_]:
    """Return which splits recompute as many layers as pins and framework allow."""
    mode = RECOMPUTE_MODES[int(one.recompute[0])]
    scope = framework_of(spec).recompute_scope(mode).code
    has_all = scope == ALL_LAYERS or one.recompute_segment[0] > 1
    if has_all or spec.pins.recomputes_all_layers:
        return np.asarray((recomputed == layers).all(axis=1))
    if scope == ONE_NUMBER:
        result = np.zeros(len(layers), dtype=bool)
        for count in range(1, spec.model.n_layers + 1):
            first = np.minimum(count * one.vpp[0], layers)
            result |= (recomputed == first).all(axis=1)
        return result
    return np.ones(len(layers), dtype=bool)


def _meshes(sizes: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Yield every way to write each level's size as a product over five axes."""
    divisors = [[d for d in range(1, n + 1) if n % d == 0] for n in sizes]
    per_level = [
        [f for f in itertools.product(divisor, repeat=5) if math.prod(f) == n]
        for n, divisor in zip(sizes, divisors, strict=True)
    ]
    for factors in itertools.product(*per_level):
        yield list(zip(*factors, strict=True))


def every_row(spec: Spec, meshes: Ints, rules: Sequence[Rule]) -> Skeletons:
    """Return every row on every mesh that keeps some rules, which know no meshes."""
    found: dict[tuple[int, ...], Skeletons] = {}
    tables = []
    for index, mesh in enumerate(meshes):
        degrees = tuple(int(np.prod(axis)) for axis in mesh)
        if degrees not in found:
            rows = _rows_of(spec, degrees)
            found[degrees] = rows.take(np.flatnonzero(holding(rules, spec, rows)))
        result = found[degrees]
        tables.append(replace(result, mesh=np.full(len(result), index)))
    return Skeletons.joined(tables)


def _rows_of(spec: Spec, degrees: tuple[int, ...]) -> Skeletons:
    """Return every row of some degrees, legal or not; on no mesh yet."""
    tp, cp, dp_shard, dp_replicate, pp = degrees
    dp = dp_shard * dp_replicate
    experts = spec.model.moe.n_experts if spec.model.moe else 1
    # Experts are shared out among the ranks of a stage that ZeRO does not tell apart:
    # all of them, or those of one replica of the shards.
    spread = tp * cp * (dp if dp_shard == 1 else dp_shard)
    vpps = [v for v in range(1, spec.model.n_layers + 1) if pp > 1 or v == 1]
    batch = spec.training.global_batch
    modes = np.array(_recomputation(spec))
    choices: dict[str, Sequence[int]] = {
        "micro_batch": [n for n in range(1, batch + 1) if batch % (dp * n) == 0],
        # ZeRO shards what the data or the sequence is split over, or one GPU's whole.
        "zero": range(1, 4) if dp_shard > 1 else range(4 if dp == 1 else 1),
        "mode": range(len(modes)),
        "sp": range(2),
        "schedule": range(4),
        "offload": range(4 if spec.cluster.topology.host else 1),
        "precision": [PRECISIONS.index(p) for p in spec.training.precisions],
        "vpp": vpps,
        "ep": [n for n in range(1, experts + 1) if experts % n + spread % n == 0],
        # A pin alone asks for experts that tensor parallelism splits.
        "etp": sorted({1, tp} if spec.pins.etp else {1}),
    }
    values = (np.array(choice, np.int64) for choice in choices.values())
    every = np.meshgrid(*values, indexing="ij")
    row = dict(zip(choices, (one.ravel() for one in every), strict=True))
    # Sequence parallelism needs tp, a schedule stages, chunks 1F1B; a V has two.
    is_even = np.isin(row["vpp"], [v for v in vpps if _has_chunks(spec, pp, v)])
    kept = (row["sp"] < tp) & ((row["schedule"] == 0) | (pp > 1))
    is_v = np.isin(row["schedule"], (ZERO_BUBBLE_V, DUALPIPE_V))
    kept &= (row["vpp"] == 1) | is_even & ((row["schedule"] == 0) | is_v)
    kept &= (row["vpp"] == 2) | ~is_v
    # A pin alone asks for a V.
    named = {"zb-v", "dualpipe-v"} & {*(spec.pins.schedule or ())}
    kept &= ~is_v | np.bool_(named)
    kept &= spread % (row["ep"] * row["etp"]) == 0
    count = int(kept.sum())
    columns: dict[str, Any] = {name: column[kept] for name, column in row.items()}
    columns |= zip(AXES, (np.full(count, degree) for degree in degrees), strict=True)
    again = modes[columns.pop("mode")].T
    return Skeletons(
        sequence_parallel=columns.pop("sp").astype(bool),
        microbatches=batch // (dp * columns["micro_batch"]),
        recompute=again[0],
        recompute_modules=again[1],
        recompute_segment=again[2],
        mesh=np.zeros(count, np.int64),
        paths=free_paths(count, 8),
        **columns,
    )


def _recomputation(spec: Spec) -> list[tuple[int, int, int]]:
    """Return every recompute mode, with every set of modules that a layer has.

    Full recomputation keeps the input of every layer, or of every second; it keeps
    them on a host under frameworks that can, and where a pin names that.
    The core of attention frees memory only where it stores scores. A set that frees
    none in the repeated layers is no recomputation of them.
    """
    moe = spec.model.moe
    there = {
        "core_attn": spec.training.attention == "plain",
        "layernorm": True,
        "mla_up_proj": spec.model.mla is not None,
        "moe_act": moe is not None,
        "moe": moe is not None,
        "shared_experts": moe is not None and moe.shared_d_ff > 0,
        "mlp": moe is None or moe.first_dense_layers > 0,
    }
    modes = [(0, 0, 1), (1, 0, 1), (2, 0, 1), (2, 0, 2)]
    has_host = spec.cluster.topology.host is not None
    is_offered = has_host and spec.framework in ("deepspeed", "fsdp")
    if is_offered or "full-cpu" in (spec.pins.recompute or ()):
        modes.append((3, 0, 1))
    for code, written in enumerate(WRITTEN_SETS[1:], start=1):
        names = written.split("+")
        is_lead_alone = names == ["mlp"] and moe is not None
        if all(there[name] for name in names) and not is_lead_alone:
            modes.append((1, code, 1))
    return modes


def _has_chunks(spec: Spec, pp: int, vpp: int) -> bool:
    """Return whether stages can have so many chunks, none of them empty."""
    layers = spec.model.n_layers
    if layers % (pp * vpp) == 0 or not framework_of(spec).has_uneven_chunks:
        return layers % (pp * vpp) == 0
    if spec.pins.layers is not None:
        # The first and last chunk may hold the embedding and the loss alone.
        return math.ceil(layers / pp) % vpp == 0
    return math.ceil(layers / pp) % vpp == 0 and pp * vpp <= layers


@cache
def _splits(layers: int, stages: int, is_recomputing: bool) -> tuple[Ints, Ints]:
    """Return every split and recompute count, (splits, stages) each."""
    cuts = itertools.combinations(range(1, layers), stages - 1)
    found, again = [], []
    for cut in cuts:
        sizes = np.diff([0, *cut, layers])
        if is_recomputing:
            counts = itertools.product(*(range(n + 1) for n in sizes))
            chosen = np.array([c for c in counts if sum(c)], dtype=np.int64)
        else:
            chosen = np.zeros((1, stages), dtype=np.int64)
        found.append(np.broadcast_to(sizes, chosen.shape))
        again.append(chosen)
    if not found:
        return np.zeros((0, stages), np.int64), np.zeros((0, stages), np.int64)
    return np.concatenate(found), np.concatenate(again)


def _one(prices: Prices, row: int) -> Prices:
    """Return a price table with one row, by pricing nothing again."""
    index = np.array([row])

    def cut(part: object) -> object:
        if isinstance(part, dict):
            return {name: column[index] for name, column in part.items()}
        return part[index] if isinstance(part, np.ndarray) else part

    time = type(prices.time)(**{k: cut(v) for k, v in vars(prices.time).items()})  # type: ignore[arg-type]
    memory = type(prices.memory)(**{k: cut(v) for k, v in vars(prices.memory).items()})  # type: ignore[arg-type]
    return Prices(prices.rows.take(index), time, memory)


def _step_s(one: Prices, layers: Ints, recomputed: Ints) -> NDArray[np.float64]:
    time, stages = one.time, layers.shape[1]
    layer_s = total(time.forward)[0] + total(time.backward)[0]
    stage_s = layers * layer_s + recomputed * time.recompute_s[0]
    stage_s[:, 0] += total(time.first)[0]
    leading = leading_of(one, stages)
    if time.lead:
        stage_s += leading * total(time.lead)[0]
    vpp, m = int(one.rows.vpp[0]), int(one.rows.microbatches[0])
    around = _around(one.rows, stages)
    stage_s[:, around[-1]] += total(time.last)[0]
    for sender, receiver in itertools.pairwise(around):
        for end in (sender, receiver) if sender != receiver else ():
            stage_s[:, end] += time.send_s[0]
    sync_s = layers * total(time.sync_layer)[0]
    sync_s[:, 0] += total(time.sync_first)[0]
    if time.sync_lead:
        sync_s += leading * total(time.sync_lead)[0]
    sync_s[:, around[-1]] += total(time.sync_last)[0]
    # Filling a pipeline of chunks, and then the slowest stage for what is left. Fewer
    # micro-batches than stages leave gaps between the chunks of the first.
    share = 1 / vpp
    if vpp > 1 and m < stages:
        share = (stages - m + (m - 1) / vpp) / (stages - 1)
    fill_s, pace_s = share * stage_s, (m - share) * stage_s
    if one.rows.schedule[0] == ZERO_BUBBLE_H1:
        # Gradients of weights wait until others have something to do: F + B - W.
        put_off = (min(m, stages) - 1) / max(stages - 1, 1)
        weight_s = layers * time.weight_s[0]
        weight_s += leading * time.lead_weight_s[0]
        fill_s = stage_s - (1 + put_off) * weight_s
        pace_s = m * stage_s - fill_s
    if one.rows.schedule[0] == ZERO_BUBBLE_V:
        # A quarter of F + B, or what m - 1 do not fill of 2 p - 2 steps down and up.
        weight_s = layers * time.weight_s[0]
        weight_s += leading * time.lead_weight_s[0]
        part = max(0.25, (2 * stages - 1 - m) / (2 * stages - 2))
        fill_s = part * (stage_s - weight_s)
        pace_s = m * stage_s - fill_s
    if one.rows.schedule[0] == DUALPIPE_V:
        # Of a chunk F + B - W: most backwards are whole.
        weight_s = layers * time.weight_s[0]
        weight_s += leading * time.lead_weight_s[0]
        fill_s = stage_s / 2 - weight_s
        pace_s = m * stage_s - fill_s
    step_s: NDArray[np.float64] = fill_s.sum(1) + pace_s.max(1) + sync_s.max(1)
    return step_s


def leading_of(one: Prices, stages: int) -> Ints:
    """Return how many leading parts each stage holds: one after the other is full."""
    held = np.zeros(stages, dtype=np.int64)
    for _ in range(int(one.memory.leading[0])):
        held[int((held == one.memory.most_leading[0]).argmin())] += 1
    return held


def _around(rows: Skeletons, stages: int) -> list[int]:
    """Return the stage of each part of the model: in turn, or down and up in a V."""
    turn = list(range(stages))
    if rows.schedule[0] in (ZERO_BUBBLE_V, DUALPIPE_V):
        return turn + turn[::-1]
    return turn * int(rows.vpp[0])


def _peak_bytes(one: Prices, layers: Ints, recomputed: Ints) -> NDArray[np.float64]:
    peak: NDArray[np.float64] = stage_bytes(one, layers, recomputed).max(axis=1)
    return peak


def stage_bytes(one: Prices, layers: Ints, recomputed: Ints) -> NDArray[np.float64]:
    """Return what every stage of every split needs, (splits, stages)."""
    memory, stages = one.memory, layers.shape[1]
    count, vpp = int(one.rows.microbatches[0]), int(one.rows.vpp[0])
    needed = layers * total(memory.layer)[0] + total(memory.fixed)[0]
    needed[:, 0] += total(memory.first)[0]
    leading = leading_of(one, stages)
    if memory.lead:
        needed += leading * total(memory.lead)[0]
    if memory.beside_lead:
        needed += (leading > 0) * total(memory.beside_lead)[0]
    head = _around(one.rows, stages)[-1]
    needed[:, head] += total(memory.last)[0]
    for e in range(stages):
        held: float = min(count, stages - e)
        if one.rows.schedule[0] == GPIPE:
            held = count
        if one.rows.schedule[0] == ZERO_BUBBLE_H1:
            held = min(count, stages)
        if vpp > 1:
            warm = 2 * (stages - e - 1) + (vpp - 1) * _group(count, stages)
            held = min(count * vpp, warm + 1) / vpp
        if one.rows.schedule[0] == ZERO_BUBBLE_V:
            held = min(2 * count, 2 * stages, count + 1 + e) / 2
        if one.rows.schedule[0] == DUALPIPE_V:
            held = min(2 * count, 2 * stages + 1, count + 1 + e) / 2
        saved = (
            layers[:, e] * memory.activations[0] - recomputed[:, e] * memory.freed[0]
        )
        saved = saved + memory.outputs[0] + vpp * memory.part_segments[0]
        saved = saved + leading[e] * memory.lead_activations[0]
        needed[:, e] += held * saved
    heads = count if one.rows.schedule[0] == GPIPE else 1
    needed[:, head] += heads * memory.last_activations[0]
    return np.asarray(needed)


def _group(count: int, stages: int) -> int:
    """Return how many micro-batches pass a chunk in a row: no fewer than stages."""
    sizes = (n for n in range(stages, count) if not 0 < count % n < stages)
    return next(sizes, count)


def _host_bytes(one: Prices, layers: Ints) -> NDArray[np.float64]:
    """Return what a GPU of the fullest stage has on its host, of every split."""
    memory = one.memory
    needed = layers * memory.host_layer[0]
    needed[:, 0] += memory.host_first[0]
    needed += leading_of(one, layers.shape[1]) * memory.host_lead[0]
    needed[:, _around(one.rows, layers.shape[1])[-1]] += memory.host_last[0]
    fullest: NDArray[np.float64] = needed.max(axis=1)
    return fullest


def _host_room_bytes(spec: Spec) -> float:
    """Return what a GPU may have on its host: an equal share."""
    host = spec.cluster.topology.host
    if host is None:
        return 0.0
    gib = host.nvme_gib if spec.training.offload_to == "nvme" else host.memory_gib
    gpus = spec.cluster.gpus_per_host
    return (gib or 0.0) * (1 - spec.limits.host_memory_margin) / gpus * GIB


def _links_idle(
    job: Job,
    one: Prices,
    place: Place,
    layers: Ints,
    recomputed: Ints,
    step_s: NDArray[np.float64],
    among: NDArray[np.bool_],
    most: int,
) -> NDArray[np.bool_]:
    """Return those of some splits that keep links idle: so many, the fastest first."""
    share = job.spec.limits.max_link_utilisation or 1.0
    result = np.zeros(len(layers), dtype=bool)
    order = np.argsort(step_s, kind="stable")
    for index in order[among[order]]:
        split = Split(layers[index], recomputed[index])
        busy_s = link_seconds(job, one.rows, split, place).sum(axis=1).max()
        result[index] = busy_s <= share * step_s[index]
        if result.sum() == most:
            break
    return result
