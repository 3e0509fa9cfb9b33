"""Coarse rows: degrees times all other choices, without a mesh."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.cost.arrays import Bools, Ints
from meshwright.offload_rules import KNOWN_OFFLOADS
from meshwright.skeleton import KEEPS_ALL, ONE_F_ONE_B, Skeletons
from meshwright.spec.cluster import PRECISIONS
from meshwright.spec.divisors import divisors
from meshwright.spec.pins import AXES, OFFLOADS, RECOMPUTE_MODES, SCHEDULES
from meshwright.spec.spec import Spec
from meshwright.topology.groups import GROUPS
from meshwright.topology.paths import free_paths

Columns = dict[str, Ints]


def coarse_rows(spec: Spec, degrees: Ints) -> tuple[Skeletons, Ints]:
    """Return the degrees times all other choices, and the degree of each row.

    `degrees` is (degrees, axes). What a choice presupposes is kept here: ZeRO needs
    shards, sequence parallelism a tensor axis, a schedule and chunks stages, offload
    a host.
    """
    columns = dict(zip(AXES, degrees.T, strict=True))
    columns["degree"] = np.arange(len(degrees))
    dp = columns["dp_shard"] * columns["dp_replicate"]
    per_rank = spec.training.global_batch // dp
    columns = _with_divisors(columns, "micro_batch", per_rank)
    columns["microbatches"] = per_rank[columns["degree"]] // columns["micro_batch"]
    columns = _with(columns, "zero", range(4), _zero_has_shards)
    columns = _with(columns, "sequence_parallel", range(2), _has_tensor_axis)
    columns = _with(columns, "schedule", range(len(SCHEDULES)), _has_stages)
    chunks = divisors(spec.model.n_layers)
    columns = _with(columns, "vpp", chunks, lambda rows: _has_chunks(spec, rows))
    columns = _with(columns, "ep", _expert_degrees(spec), _has_expert_groups)
    columns = _with(columns, "offload", _offloads(spec))
    precisions = [PRECISIONS.index(name) for name in spec.training.precisions]
    columns = _with(columns, "precision", precisions)
    columns = _with(columns, "recompute", range(len(RECOMPUTE_MODES)))
    number = columns.pop("degree")
    is_split = columns.pop("sequence_parallel").astype(bool)
    count = len(number)
    rows = Skeletons(
        **columns,
        sequence_parallel=is_split,
        paths=free_paths(count, len(GROUPS)),
        mesh=np.full(count, -1),
    )
    return rows, number


def _with_divisors(columns: Columns, name: str, wholes: Ints) -> Columns:
    """Return the rows times the divisors of a number of their own."""
    known = {whole: divisors(whole) for whole in np.unique(wholes).tolist()}
    choices = [known[whole] for whole in wholes.tolist()]
    row = np.repeat(np.arange(len(wholes)), [len(choice) for choice in choices])
    taken = {own: column[row] for own, column in columns.items()}
    flat = [value for choice in choices for value in choice]
    return {**taken, name: np.array(flat, dtype=np.int64)}


def _with(
    columns: Columns,
    name: str,
    values: range | list[int],
    keep: Callable[[Columns], Bools] | None = None,
) -> Columns:
    """Return the rows times some values, without what makes no sense."""
    count = len(columns["degree"])
    row = np.repeat(np.arange(count), len(values))
    grown = {own: column[row] for own, column in columns.items()}
    grown[name] = np.tile(np.array(values, dtype=np.int64), count)
    if keep is None:
        return grown
    mask = keep(grown)
    return {own: column[mask] for own, column in grown.items()}


def _zero_has_shards(rows: Columns) -> Bools:
    """Shards mean ZeRO; without, the ranks of one sequence may shard alone."""
    is_sharded, zero = rows["dp_shard"] > 1, rows["zero"]
    may_shard = is_sharded | ((rows["dp_replicate"] == 1) & (rows["cp"] > 1))
    return np.asarray(((zero > 0) & may_shard) | ((zero == 0) & ~is_sharded))


def _has_tensor_axis(rows: Columns) -> Bools:
    return np.asarray((rows["sequence_parallel"] == 0) | (rows["tp"] > 1))


def _has_stages(rows: Columns) -> Bools:
    return np.asarray((rows["schedule"] == ONE_F_ONE_B) | (rows["pp"] > 1))


def _has_chunks(spec: Spec, rows: Columns) -> Bools:
    """Chunks are of whole layers, equally many on every stage."""
    parts = rows["pp"] * rows["vpp"]
    is_even = (spec.model.n_layers % parts == 0) & (rows["pp"] > 1)
    result: Bools = (rows["vpp"] == 1) | (is_even & (rows["schedule"] == ONE_F_ONE_B))
    return result


def _offloads(spec: Spec) -> list[int]:
    """Offloading presupposes a host, and a framework that does it; or a pin."""
    known = KNOWN_OFFLOADS[spec.framework] if spec.cluster.topology.host else ()
    codes = (OFFLOADS.index(name) for name in spec.pins.offload or ())
    return sorted({KEEPS_ALL, *known, *codes})


def _expert_degrees(spec: Spec) -> list[int]:
    return divisors(spec.model.moe.n_experts) if spec.model.moe else [1]


def _has_expert_groups(rows: Columns) -> Bools:
    """Experts are shared out over tp x cp x shards, or replicas where none shard."""
    shard, replicate = rows["dp_shard"], rows["dp_replicate"]
    data = np.where((shard > 1) | (replicate == 1), shard, replicate)
    return np.asarray((rows["tp"] * rows["cp"] * data) % rows["ep"] == 0)
