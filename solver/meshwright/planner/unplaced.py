"""Skeletons without a mesh: degrees times all other choices, each held as one number.

A lattice may have tens of millions of skeletons, but few base skeletons differ in the
ways that the rules leave them. Equal sets of ways are held once, as a pattern, so that
skeletons are counted and found without a list of all; columns are made when they are
needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from meshwright.deadline import NEVER, Deadline
from meshwright.frameworks.base.registry import framework_of, offered_sets, tries_v
from meshwright.planner.legal_ways import LegalWays, legal_ways, patterns
from meshwright.plans.columns import (
    Bools,
    Ints,
    joined,
    ranges,
    take,
)
from meshwright.plans.rule import Rule, holding
from meshwright.plans.schedules import IS_V
from meshwright.plans.skeletons import Skeletons, plain_columns
from meshwright.rules.sums import expert_width
from meshwright.rules.universal import may_keep_inputs_on_host
from meshwright.spec.base import divisors
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.plan_fields import (
    AXES,
    FIELD,
    FULL,
    FULL_CPU,
    KEEPS_ALL,
    NONE,
    OFFLOADS,
    ONE_F_ONE_B,
    SCHEDULES,
    SELECTIVE,
)
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import free_paths

Columns = dict[str, Any]

RECOMPUTATION = ("recompute", "recompute_modules", "recompute_segment")
"""The plan fields of recomputation."""

ZERO_STAGES = {0: [0], 1: [1, 2, 3], 2: [0, 1, 2, 3]}
"""Stages to try where all is replicated, is always sharded, or may be."""

SEGMENTS = (2,)
"""Layers of longer segments to try. A stage of n layers with f micro-batches in flight
holds f n / k inputs, and k layers at work, each of which saves 10 to 17 times its
input. Under 1F1B f n is about the layers of the model, so that k is best near 3, and 2
frees nearly as much. Pins may name others."""

OFF_OR_ON = {0: [0], 1: [0, 1]}
"""Values to try where the choice is absent or present."""

AT_ONCE = 1_024
"""Degrees whose layouts are listed at once."""


@dataclass(frozen=True)
class UnplacedSkeletons:
    """Skeletons without a mesh, each held as one number until its columns are needed.

    Each is a base skeleton with one of the ways to choose precision, offload and
    recomputation, and has its number by `LegalWays`.
    """

    base: Skeletons
    """The skeletons with the plainest way."""
    base_degree: Ints
    base_price_group: Ints
    ways: dict[str, Ints]
    """Codes of precision, offload and recomputation, by name, one entry per way."""
    ways_to_free: int
    """How many consecutive ways differ only in offload and recomputation."""
    recompute_ways: int
    """How many consecutive ways differ only in recomputation."""
    legal: LegalWays
    """The legal ways of each base skeleton."""
    taken: Ints | None = None
    """Numbers of the skeletons; all legal ones if None."""

    def __len__(self) -> int:
        """Return the number of skeletons."""
        return len(self.legal if self.taken is None else self.taken)

    def take(self, index: Ints) -> UnplacedSkeletons:
        """Return the skeletons of `index`."""
        known = self.taken
        taken = self.legal.numbers_at(index) if known is None else known[index]
        return replace(self, taken=taken)

    def among(self, has_degree: Bools) -> UnplacedSkeletons:
        """Return all legal skeletons of some degrees."""
        return self.of_bases(np.flatnonzero(has_degree[self.base_degree]))

    def of_bases(self, kept: Ints) -> UnplacedSkeletons:
        """Return all legal skeletons of some base skeletons."""
        return replace(
            self,
            base=self.base.take(kept),
            base_degree=self.base_degree[kept],
            base_price_group=self.base_price_group[kept],
            legal=replace(self.legal, pattern=self.legal.pattern[kept]),
        )

    def places_among(self, has_degree: Bools, place: Ints) -> Ints:
        """Return the places that skeletons at a place of all have in `among`."""
        counts = self.legal.counts
        gone = np.where(has_degree[self.base_degree], 0, counts)
        base = self.take(place)._base_index
        return np.asarray(place - (np.cumsum(gone) - gone)[base])

    def plainest(self, ways: int) -> tuple[UnplacedSkeletons, Ints]:
        """Return the first skeleton of each run of ways, and the run of each skeleton.

        A run is `ways_to_free` or `recompute_ways` long.
        """
        one_of_each, run = np.unique(self.number // ways, return_inverse=True)
        plain = self.legal.plainest(one_of_each * ways, ways)
        return replace(self, taken=plain), run

    def ways_to_offload(self) -> tuple[UnplacedSkeletons, Ints]:
        """Return a skeleton of each way to offload, of the family of each skeleton.

        Comes with which of the skeletons has that family.
        """
        size, first = self.recompute_ways, self.family * self.ways_to_free
        number = first[:, None] + np.arange(0, self.ways_to_free, size)
        is_legal = self.legal.has_any(number, size)
        plain = self.legal.plainest(number[is_legal], size)
        return replace(self, taken=plain), np.nonzero(is_legal)[0]

    @property
    def state_columns(self) -> list[Ints]:
        """Return columns: families that are equal in them may hold the same state."""
        base = self._base_index
        experts = (self.base.ep, self.base.etp)
        ends = IS_V[self.base.schedule]
        columns = (self.base_degree, *experts, ends, self.base.zero, self.legal.pattern)
        by_base = (column[base] for column in columns)
        return [*by_base, self.ways["precision"][self._way]]

    @cached_property
    def number(self) -> Ints:
        """Return the number of each skeleton."""
        return self.legal.numbers() if self.taken is None else self.taken

    @cached_property
    def rows(self) -> Skeletons:
        """Return the columns of the skeletons."""
        codes: dict[str, Any] = take(self.ways, self._way)
        return self.base.take_with(self._base_index, **codes)

    @cached_property
    def degree(self) -> Ints:
        """Return the index of the degrees of each skeleton."""
        return self.base_degree[self._base_index]

    @property
    def offload(self) -> Ints:
        """Return the code of offload of each skeleton."""
        return self.ways["offload"][self._way]

    @property
    def price_group(self) -> Ints:
        """Return the price group of each skeleton.

        Skeletons in one group differ only in schedule and chunks. Prices depend on
        whether there are several chunks, whose sends may hide, and on no more.
        """
        base = self._base_index
        group = 2 * self.base_price_group[base] + (self.base.vpp[base] > 1)
        return group * self.way_count + self._way

    @property
    def family(self) -> Ints:
        """Return the family of each skeleton.

        Skeletons of one family differ only in recomputation and offload. They stand
        together, the one that frees the least memory first.
        """
        return self.number // self.ways_to_free

    def patterns(self, spec: Spec, rules: Sequence[Rule]) -> tuple[Ints, Skeletons]:
        """Return the pattern of each base skeleton, and a skeleton of each to judge by.

        Rules leave the same ways to all of a pattern. Its skeleton stands there with
        every way, legal or not, `way_count` rows for one pattern after another.
        """
        one, pattern = patterns(spec, self.base, [self.ways], rules)
        number = one[:, None] * self.way_count + np.arange(self.way_count)
        return pattern, replace(self, taken=number.ravel()).rows

    @property
    def families(self) -> tuple[Ints, Ints]:
        """Return where each family starts and its skeletons, where all are here."""
        return self.runs(self.ways_to_free)

    def runs(self, ways: int) -> tuple[Ints, Ints]:
        """Return where each run of ways starts, and its skeletons, as `families`."""
        count = self.legal.run_counts(ways)
        return np.cumsum(count) - count, count

    @property
    def recompute_way(self) -> Ints:
        """Return which way to recompute each skeleton has."""
        return self.number % self.recompute_ways

    @property
    def way_count(self) -> int:
        """Return how many ways there are, legal or not."""
        return len(next(iter(self.ways.values())))

    @cached_property
    def _way(self) -> Ints:
        return self.number % self.way_count

    @cached_property
    def _base_index(self) -> Ints:
        return self.number // self.way_count


class Layouts(NamedTuple):
    """Skeletons without chunks, precision, offload and recomputation."""

    rows: Skeletons
    degree: Ints
    """Index of the degrees of each layout."""
    price_group: Ints
    """Group id; layouts in one group differ only in schedule."""
    has_chunks: Bools
    """Whether the rules allow two chunks a stage; a rule against two forbids more."""


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
    splits = {tp: expert_splits(spec, tp) for tp in np.unique(columns["tp"]).tolist()}
    columns = _with(columns, "etp", columns["tp"], splits)
    columns = _with_divisors(columns, "ep", _most_experts(spec, columns))
    columns["sequence_parallel"] = columns["sequence_parallel"].astype(bool)
    degree = columns.pop("degree")
    count = len(degree)
    columns["precision"] = np.full(count, _precisions(spec)[0])
    columns = plain_columns(count) | columns
    rows = Skeletons(**columns, paths=free_paths(count, 0), mesh=np.full(count, -1))
    schedules = {"schedule": np.arange(len(SCHEDULES))}
    allowed = _holding(spec, rows, schedules, rules)
    allowed &= ~IS_V
    for code in np.flatnonzero(IS_V) if tries_v(spec) else ():
        in_v = replace(rows, schedule=np.full(count, code), vpp=np.full(count, 2))
        allowed[:, code] = holding(rules, spec, in_v)
    # Only a pipeline has a schedule to choose.
    allowed &= (rows.pp > 1)[:, None] | (schedules["schedule"] == ONE_F_ONE_B)
    plain = np.full(count, ONE_F_ONE_B)
    in_two = replace(rows, schedule=plain, vpp=np.full(count, 2))
    has_chunks = (rows.pp > 1) & holding(rules, spec, in_two)
    allowed[:, ONE_F_ONE_B] |= has_chunks
    row, schedule = np.nonzero(allowed)
    return Layouts(
        rows.take_with(row, **_not_chosen(rows, len(row)), schedule=schedule),
        degree[row],
        row,
        IS_V[schedule] | (has_chunks[row] & (schedule == ONE_F_ONE_B)),
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
    is_v = IS_V[layouts.rows.schedule[columns["layout"]]]
    columns = take(columns, np.flatnonzero(~is_v | (columns["vpp"] == 2)))
    layout = columns["layout"]
    not_chosen = _not_chosen(layouts.rows, len(layout))
    base = layouts.rows.take_with(layout, **not_chosen, vpp=columns["vpp"])
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


def _not_chosen(rows: Skeletons, count: int) -> dict[str, Ints]:
    """Return columns that are equal in all rows until the last choices, (count,).

    Each is one entry in memory, since there may be millions of rows.
    """
    names = ("precision", "offload", *RECOMPUTATION, "mesh")
    return {n: np.broadcast_to(getattr(rows, n)[:1], count) for n in names}


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
    crossed = rows.take_with((slice(None), None), **code_columns)
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
    is_on_host = may_keep_inputs_on_host(spec) or "full-cpu" in (
        spec.pins.recompute or ()
    )
    return [(NONE, 0, 1), *selective, *full, *[(FULL_CPU, 0, 1)] * is_on_host]


def _segments(spec: Spec) -> list[int]:
    """Return the layers of segments to try: as with modules, and those of pins."""
    pinned = spec.pins.recompute_segment
    values = pinned.values or (pinned.min, pinned.max) if pinned else ()
    offered = SEGMENTS if framework_of(spec).has_segments else ()
    most = spec.model.n_layers
    return sorted({1, *(n for n in (*offered, *values) if 1 <= n <= most)})


def _precisions(spec: Spec) -> list[int]:
    return [PRECISIONS.index(name) for name in spec.training.precisions]


def expert_splits(spec: Spec, tp: int) -> list[int]:
    """Return over how many GPUs to split each expert: 1, and tp where etp is pinned.

    A model without experts has none to split, and their width must divide.
    """
    is_split = spec.pins.etp is not None and spec.model.moe is not None
    return [1, tp] if is_split and tp > 1 and expert_width(spec) % tp == 0 else [1]


def _most_experts(spec: Spec, rows: Columns) -> Ints:
    """Return the largest expert-parallel degree of each row.

    Expert-parallel groups are folded out of tp x cp x dp_shard, or dp_replicate where
    nothing is sharded.
    """
    experts = spec.model.moe.n_experts if spec.model.moe else 1
    shard, replicate = rows["dp_shard"], rows["dp_replicate"]
    data = np.where((shard > 1) | (replicate == 1), shard, replicate)
    room = rows["tp"] * rows["cp"] * data // rows["etp"]
    return np.asarray(np.gcd(experts, room))
