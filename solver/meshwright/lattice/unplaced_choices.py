"""Unplaced skeletons: degrees times all other choices, without a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from meshwright.frameworks.base.registry import framework_of
from meshwright.frameworks.base.selective import offered_sets
from meshwright.lattice.legal_ways import LegalWays, legal_ways
from meshwright.plans.columns import Bools, Ints, ranges, take
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

ZERO_STAGES = {0: [0], 1: [1, 2, 3], 2: [0, 1, 2, 3]}
"""Stages to try where all is replicated, is always sharded, or may be."""

OFF_OR_ON = {0: [0], 1: [0, 1]}
"""Values to try where the choice is absent or present."""


class Layouts(NamedTuple):
    """Skeletons without chunks, precision, offload and recomputation."""

    rows: Skeletons
    degree: Ints
    """Index of the degrees of each layout."""
    price_group: Ints
    """Group id; layouts in one group differ only in schedule."""


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
    """Codes of precision, offload, recompute and its modules, by name, one entry per
    way."""
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
        kept = np.flatnonzero(has_degree[self.base_degree])
        return replace(
            self,
            base=self.base.take(kept),
            base_degree=self.base_degree[kept],
            base_price_group=self.base_price_group[kept],
            legal=replace(self.legal, pattern=self.legal.pattern[kept]),
        )

    @cached_property
    def number(self) -> Ints:
        """Return the number of each skeleton."""
        return self.legal.numbers() if self.taken is None else self.taken

    @cached_property
    def rows(self) -> Skeletons:
        """Return the columns of the skeletons."""
        codes: dict[str, Any] = take(self.ways, self._way)
        return replace(self.base.take(self._base_index), **codes)

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

        Skeletons in one group differ only in schedule and chunks, which no price
        depends on.
        """
        group = self.base_price_group[self._base_index]
        return group * self._way_count + self._way

    @property
    def family(self) -> Ints:
        """Return the family of each skeleton.

        Skeletons of one family differ only in recomputation and offload. They stand
        together, the one that frees the least memory first.
        """
        return self.number // self.ways_to_free

    @property
    def recompute_way(self) -> Ints:
        """Return which way to recompute each skeleton has."""
        return self.number % self.recompute_ways

    @property
    def _way_count(self) -> int:
        return len(next(iter(self.ways.values())))

    @cached_property
    def _way(self) -> Ints:
        return self.number % self._way_count

    @cached_property
    def _base_index(self) -> Ints:
        return self.number // self._way_count


def list_layouts(spec: Spec, degrees: Ints, rules: Sequence[Rule] = ()) -> Layouts:
    """Return the layouts that the rules allow for some degrees.

    `degrees` is (degrees, axes). ZeRO is tried only with shards, sequence parallelism
    only with a tensor axis, a schedule only with stages. `list_unplaced` adds chunks,
    precision, offload and recomputation, which have their plainest values here.
    """
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
    row, schedule = np.nonzero(allowed)
    return Layouts(replace(rows.take(row), schedule=schedule), degree[row], row)


def list_unplaced(
    spec: Spec, layouts: Layouts, rules: Sequence[Rule], most_chunks: Ints
) -> UnplacedSkeletons:
    """Return the legal layouts times chunks, precision, offload and recompute mode.

    `most_chunks` is the largest number of chunks of a stage for each layout; all its
    divisors are tried.
    """
    columns = {"layout": np.arange(len(layouts.rows))}
    columns = _with_divisors(columns, "vpp", most_chunks)
    layout = columns["layout"]
    base = replace(layouts.rows.take(layout), vpp=columns["vpp"])
    offloads, recomputed = _offloads(spec), _recomputation(spec)
    names = ("recompute", "recompute_modules")
    modes = dict(zip(names, np.array(recomputed).T, strict=True))
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
        legal=legal_ways(spec, base, choices, rules),
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


def even_chunks(spec: Spec, rows: Skeletons) -> Ints:
    """Return the layers of the largest stage where it can be cut into chunks, else 1.

    Each of its divisors is a number of equal chunks. Where layers do not divide, the
    framework must take chunks of which some have a layer less.
    """
    layers, pp = spec.model.n_layers, rows.pp
    is_even = (layers % pp == 0) | framework_of(spec).has_uneven_chunks
    is_even &= (pp > 1) & (rows.schedule == ONE_F_ONE_B)
    return np.where(is_even, -(-layers // pp), 1)


def whole_chunks(spec: Spec, rows: Skeletons) -> Ints:
    """Return the same, but 1 where micro-batches do not fill whole rounds."""
    return np.where(rows.microbatches % rows.pp == 0, even_chunks(spec, rows), 1)


def _offloads(spec: Spec) -> list[int]:
    """Return the codes of offload that host and framework allow, or pins name."""
    allowed = framework_of(spec).offloads if spec.cluster.topology.host else ()
    pinned = (OFFLOADS.index(name) for name in spec.pins.offload or ())
    return sorted({KEEPS_ALL, *allowed, *pinned})


def _recomputation(spec: Spec) -> list[tuple[int, int]]:
    """Return the codes of recompute modes, each with a set of modules, to try.

    They are those that the framework offers, and those that pins name.
    """
    pinned = spec.pins.recompute_modules or ()
    sets = {FIELD["recompute_modules"].encoded(text) for text in pinned}
    if "selective" in (spec.pins.recompute or ()):
        sets.add(0)
    sets |= {*offered_sets(spec)}
    return [(NONE, 0), *((SELECTIVE, code) for code in sorted(sets)), (FULL, 0)]


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
