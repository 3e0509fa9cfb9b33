"""Unplaced skeletons: degrees times all other choices, without a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from meshwright.deadline import NEVER, Deadline
from meshwright.frameworks.base.registry import framework_of
from meshwright.frameworks.base.selective import offered_sets
from meshwright.lattice.legal_ways import legal_ways
from meshwright.lattice.unplaced_skeletons import UnplacedSkeletons
from meshwright.plans.columns import Bools, Ints, joined, ranges, take
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import (
    FULL,
    KEEPS_ALL,
    NONE,
    ONE_F_ONE_B,
    SELECTIVE,
    Skeletons,
    plain_columns,
)
from meshwright.spec.divisors import divisors
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.plan_fields import AXES, FIELD, OFFLOADS, SCHEDULES
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import free_paths

Columns = dict[str, Any]

RECOMPUTATION = ("recompute", "recompute_modules", "recompute_segment")
"""The fields that say what is recomputed."""

ZERO_STAGES = {0: [0], 1: [1, 2, 3], 2: [0, 1, 2, 3]}
"""Stages to try where all is replicated, is always sharded, or may be."""

SEGMENTS = (2,)
"""Layers of longer segments to try. A stage of n layers with f micro-batches in flight
holds f n / k inputs, and k layers at work, each of which saves 10 to 17 times its
input. Under 1F1B f n is about the layers of the model, so that k is best near 3, and 2
frees nearly as much. Pins may name others."""

OFF_OR_ON = {0: [0], 1: [0, 1]}
"""Values to try where the choice is absent or present."""


class Layouts(NamedTuple):
    """Skeletons without chunks, precision, offload and recomputation."""

    rows: Skeletons
    degree: Ints
    """Index of the degrees of each layout."""
    price_group: Ints
    """Group id; layouts in one group differ only in schedule."""
    has_chunks: Bools
    """Whether the rules let stages have two chunks; what bars two bars more."""


AT_ONCE = 4_096
"""Degrees whose layouts are listed at once."""


def list_layouts(
    spec: Spec,
    degrees: Ints,
    rules: Sequence[Rule] = (),
    deadline: Deadline = NEVER,
) -> Layouts:
    """Return the layouts that the rules allow for some degrees.

    `degrees` is (degrees, axes). ZeRO is tried only with shards, sequence parallelism
    only with a tensor axis, a schedule only with stages. `list_unplaced` adds chunks,
    precision, offload and recomputation, which have their plainest values here. A
    layout that 1F1B can only run interleaved is listed too.

    Raises:
        OutOfTime: there are too many for the time.
    """
    parts: list[Layouts] = []
    groups = 0
    for start in range(0, max(len(degrees), 1), AT_ONCE):
        if start:
            deadline.check()
        part = _layouts(spec, degrees[start : start + AT_ONCE], rules)
        parts.append(
            part._replace(
                degree=part.degree + start, price_group=part.price_group + groups
            )
        )
        groups += 1 + int(part.price_group.max(initial=-1))
    return parts[0] if len(parts) == 1 else Layouts(*joined(parts))


def _layouts(spec: Spec, degrees: Ints, rules: Sequence[Rule]) -> Layouts:
    columns = dict(zip(AXES, degrees.T, strict=True))
    columns["degree"] = np.arange(len(degrees))
    dp = columns["dp_shard"] * columns["dp_replicate"]
    # Where there are too few sequences, the rules say so: every rank has one here.
    per_rank = np.maximum(spec.training.global_batch // dp, 1)
    columns = _with_divisors(columns, "micro_batch", per_rank)
    columns["microbatches"] = per_rank[columns["degree"]] // columns["micro_batch"]
    columns = _with(columns, "zero", _shards(columns), ZERO_STAGES)
    columns = _with(columns, "sequence_parallel", columns["tp"] > 1, OFF_OR_ON)
    columns = _with_divisors(columns, "ep", _most_experts(spec, columns))
    columns["sequence_parallel"] = columns["sequence_parallel"].astype(bool)
    degree = columns.pop("degree")
    count = len(degree)
    columns["precision"] = np.full(count, _precisions(spec)[0])
    columns = plain_columns(count) | columns
    rows = Skeletons(**columns, paths=free_paths(count, 0), mesh=np.full(count, -1))
    schedules = {"schedule": np.arange(len(SCHEDULES))}
    allowed = _holding(spec, rows, schedules, rules)
    # Only a pipeline has a schedule to choose.
    allowed &= (rows.pp > 1)[:, None] | (schedules["schedule"] == ONE_F_ONE_B)
    in_two = replace(rows, schedule=0 * rows.pp + ONE_F_ONE_B, vpp=0 * rows.pp + 2)
    has_chunks = (rows.pp > 1) & holding(rules, spec, in_two)
    allowed[:, ONE_F_ONE_B] |= has_chunks
    row, schedule = np.nonzero(allowed)
    return Layouts(
        replace(rows.take(row), schedule=schedule),
        degree[row],
        row,
        has_chunks[row] & (schedule == ONE_F_ONE_B),
    )


def list_unplaced(
    spec: Spec,
    layouts: Layouts,
    rules: Sequence[Rule],
    is_wanted: Callable[[Skeletons], Bools] | None = None,
    deadline: Deadline = NEVER,
) -> UnplacedSkeletons:
    """Return the legal layouts times chunks, precision, offload and recompute mode.

    `is_wanted` is asked before the last three are chosen; without it all are listed.

    Raises:
        OutOfTime: there are too many for the time.
    """
    columns = {"layout": np.arange(len(layouts.rows))}
    columns = _with_divisors(columns, "vpp", _most_chunks(spec, layouts))
    layout = columns["layout"]
    base = replace(layouts.rows.take(layout), vpp=columns["vpp"])
    if is_wanted is not None:
        wanted = np.flatnonzero(is_wanted(base))
        base, layout = base.take(wanted), layout[wanted]
    offloads, recomputed = _offloads(spec), recomputation(spec)
    modes = dict(zip(RECOMPUTATION, np.array(recomputed).T, strict=True))
    choices = [
        {"precision": np.array(_precisions(spec))},
        {"offload": np.array(offloads)},
        modes,
    ]
    return UnplacedSkeletons(
        base,
        layouts.degree[layout],
        layouts.price_group[layout],
        _product(choices),
        ways_to_free=len(offloads) * len(recomputed),
        recompute_ways=len(recomputed),
        legal=legal_ways(spec, base, choices, rules, deadline),
    )


def _product(choices: Sequence[dict[str, Ints]]) -> dict[str, Ints]:
    """Return the codes of every combination of choices, the last choice fastest."""
    counts = [len(next(iter(codes.values()))) for codes in choices]
    index = np.unravel_index(np.arange(np.prod(counts)), counts)
    return {
        name: code[way]
        for codes, way in zip(choices, index, strict=True)
        for name, code in codes.items()
    }


def _holding(
    spec: Spec, rows: Skeletons, codes: dict[str, Ints], rules: Sequence[Rule]
) -> Bools:
    """Return which rows keep the rules with which codes, (rows, codes).

    Rows and codes are broadcast against each other, so that a rule that ignores the
    codes is computed once per row.
    """
    code_columns: dict[str, Any] = {name: code[None] for name, code in codes.items()}
    crossed = replace(rows.take((slice(None), None)), **code_columns)
    count = len(next(iter(codes.values())))
    allowed = np.empty((len(rows), count), dtype=bool)
    allowed[:] = holding(rules, spec, crossed)
    return allowed


def _with(
    columns: Columns, name: str, case: Ints, choices: dict[int, list[int]]
) -> Columns:
    """Return the rows, each times the values that `choices` lists for its case."""
    cases = np.array(sorted(choices), dtype=np.int64)
    lists = [choices[key] for key in cases.tolist()]
    lengths = np.array([len(values) for values in lists], dtype=np.int64)
    flat = np.array([value for values in lists for value in values], dtype=np.int64)
    which = np.searchsorted(cases, case)
    row = np.repeat(np.arange(len(case)), lengths[which])
    first = np.cumsum(lengths) - lengths
    value = ranges(first[which], lengths[which])
    return {**take(columns, row), name: flat[value]}


def _with_divisors(columns: Columns, name: str, wholes: Ints) -> Columns:
    """Return the rows, each times the divisors of its number in `wholes`."""
    choices = {whole: divisors(whole) for whole in np.unique(wholes).tolist()}
    return _with(columns, name, wholes, choices)


def _shards(rows: Columns) -> Ints:
    """Return the case of each row in `ZERO_STAGES`.

    Sharded data parallelism means ZeRO. Without any data parallelism the ranks that
    share one sequence may still shard among themselves, and a single GPU may have a
    stage too, whose shard is the whole: offload needs one.
    """
    may_shard = rows["dp_replicate"] == 1
    return np.where(rows["dp_shard"] > 1, 1, np.where(may_shard, 2, 0))


def _most_chunks(spec: Spec, layouts: Layouts) -> Ints:
    """Return the layers of the largest stage where it can be cut into chunks, else 1.

    Each of its divisors is a number of equal chunks. Where layers do not divide, the
    framework must take chunks of which some have a layer less.
    """
    layers, pp = spec.model.n_layers, layouts.rows.pp
    is_even = (layers % pp == 0) | framework_of(spec).has_uneven_chunks
    return np.where(is_even & layouts.has_chunks, -(-layers // pp), 1)


def _offloads(spec: Spec) -> list[int]:
    """Return the codes of offload that host and framework allow, or pins name."""
    allowed = framework_of(spec).offloads if spec.cluster.topology.host else ()
    pinned = (OFFLOADS.index(name) for name in spec.pins.offload or ())
    return sorted({KEEPS_ALL, *allowed, *pinned})


def recomputation(spec: Spec) -> list[tuple[int, int, int]]:
    """Return the ways to recompute that are tried, as codes of `RECOMPUTATION`.

    They are those that the framework offers, and those that pins name.
    """
    pinned = spec.pins.recompute_modules or ()
    sets = {FIELD["recompute_modules"].encoded(text) for text in pinned}
    if "selective" in (spec.pins.recompute or ()):
        sets.add(0)
    sets |= {*offered_sets(spec)}
    selective = ((SELECTIVE, code, 1) for code in sorted(sets))
    full = ((FULL, 0, segment) for segment in _segments(spec))
    return [(NONE, 0, 1), *selective, *full]


def _segments(spec: Spec) -> list[int]:
    """Return the layers of segments to try: as with modules, and those of pins."""
    pinned = spec.pins.recompute_segment
    values = pinned.values or (pinned.min, pinned.max) if pinned else ()
    offered = SEGMENTS if framework_of(spec).has_segments else ()
    most = spec.model.n_layers
    return sorted({1, *(n for n in (*offered, *values) if 1 <= n <= most)})


def _precisions(spec: Spec) -> list[int]:
    return [PRECISIONS.index(name) for name in spec.training.precisions]


def _most_experts(spec: Spec, rows: Columns) -> Ints:
    """Return the largest expert-parallel degree of each row.

    Expert-parallel groups are folded out of tp x cp x dp_shard, or dp_replicate where
    nothing is sharded.
    """
    experts = spec.model.moe.n_experts if spec.model.moe else 1
    shard, replicate = rows["dp_shard"], rows["dp_replicate"]
    data = np.where((shard > 1) | (replicate == 1), shard, replicate)
    return np.asarray(np.gcd(experts, rows["tp"] * rows["cp"] * data))
