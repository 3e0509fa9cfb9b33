"""Coarse rows: degrees times all other choices, without a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from meshwright.frameworks.base.registry import framework_of
from meshwright.plans.columns import Bools, Ints, ranges, take
from meshwright.plans.rule import Rule, holding
from meshwright.plans.skeletons import (
    KEEPS_ALL,
    ONE_F_ONE_B,
    Skeletons,
    plain_columns,
)
from meshwright.spec.divisors import divisors
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.plan_fields import AXES, OFFLOADS, RECOMPUTE_MODES, SCHEDULES
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import free_paths

Columns = dict[str, Any]

ZERO_STAGES = {0: [0], 1: [1, 2, 3], 2: [0, 1, 2, 3]}
"""By whether there are no shards of the state, always, or if one wants."""

OFF_OR_ON = {0: [0], 1: [0, 1]}
"""By whether there is a choice."""


class Layouts(NamedTuple):
    """Rows without chunks, precision, offload and recomputation, at their plainest."""

    rows: Skeletons
    degree: Ints
    """Of each row: the index of its degrees."""
    alike: Ints
    """Of each row: a number shared by those that differ in schedule alone."""


@dataclass(frozen=True)
class Choices:
    """Rows that are others but for a few codes; each is one number until asked for."""

    plain: Skeletons
    """What rows are but for those codes."""
    plain_degree: Ints
    plain_alike: Ints
    codes: dict[str, Ints]
    """Of some columns: the codes of every way to choose them."""
    frees: int
    """How many ways, one after another, differ in what they free alone."""
    number: Ints
    """Of each row: its plain one, times all ways, plus its way."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.number)

    def take(self, index: Ints) -> Choices:
        """Return the rows of `index`."""
        return replace(self, number=self.number[index])

    @cached_property
    def rows(self) -> Skeletons:
        """Return the rows themselves."""
        ways: dict[str, Any] = take(self.codes, self.number % self._ways)
        return replace(self.plain.take(self._which), **ways)

    @cached_property
    def degree(self) -> Ints:
        """Return of each row the index of its degrees."""
        return self.plain_degree[self._which]

    @property
    def alike(self) -> Ints:
        """Return a number shared by rows that differ in schedule and chunks alone."""
        return self.plain_alike[self._which] * self._ways + self.number % self._ways

    @property
    def kin(self) -> Ints:
        """Return a number shared by rows that differ in what they free alone.

        Those stand together, the one that frees the least first.
        """
        return self.number // self.frees

    @property
    def _ways(self) -> int:
        return len(next(iter(self.codes.values())))

    @property
    def _which(self) -> Ints:
        return self.number // self._ways


def coarse_rows(spec: Spec, degrees: Ints, rules: Sequence[Rule] = ()) -> Layouts:
    """Return the degrees times choices of layout that the rules allow.

    `degrees` is (degrees, axes). What a choice presupposes is kept here: ZeRO needs
    shards, sequence parallelism a tensor axis, a schedule stages. `with_choices` adds
    the others, at their plainest here.
    """
    columns = dict(zip(AXES, degrees.T, strict=True))
    columns["degree"] = np.arange(len(degrees))
    dp = columns["dp_shard"] * columns["dp_replicate"]
    # A rank has a sequence, also where rules are to tell that there are too few.
    per_rank = np.maximum(spec.training.global_batch // dp, 1)
    columns = _with_divisors(columns, "micro_batch", per_rank)
    columns["microbatches"] = per_rank[columns["degree"]] // columns["micro_batch"]
    columns = _with(columns, "zero", _shards(columns), ZERO_STAGES)
    columns = _with(columns, "sequence_parallel", columns["tp"] > 1, OFF_OR_ON)
    columns = _with_divisors(columns, "ep", _most_experts(spec, columns))
    columns["sequence_parallel"] = columns["sequence_parallel"].astype(bool)
    number = columns.pop("degree")
    count = len(number)
    columns["precision"] = np.full(count, _precisions(spec)[0])
    columns = plain_columns(count) | columns
    rows = Skeletons(**columns, paths=free_paths(count, 0), mesh=np.full(count, -1))
    schedules = {"schedule": np.arange(len(SCHEDULES))}
    allowed = _beside(spec, rows, schedules, rules)
    # A schedule presupposes stages.
    allowed &= (rows.pp > 1)[:, None] | (schedules["schedule"] == ONE_F_ONE_B)
    row, schedule = np.nonzero(allowed)
    return Layouts(replace(rows.take(row), schedule=schedule), number[row], row)


def with_choices(
    spec: Spec, layouts: Layouts, rules: Sequence[Rule], most_chunks: Ints
) -> Choices:
    """Return rows times chunks, precision, offload and recompute modes, by the rules.

    `most_chunks` says of each row how many a stage may have: any divisor is tried.
    Offload presupposes a host.
    """
    rows = {"row": np.arange(len(layouts.rows))}
    columns = _with_divisors(rows, "vpp", most_chunks)
    row = columns["row"]
    plain = replace(layouts.rows.take(row), vpp=columns["vpp"])
    offloads, modes = _offloads(spec), range(len(RECOMPUTE_MODES))
    ways = np.array(list(product(_precisions(spec), offloads, modes)))
    codes = dict(zip(("precision", "offload", "recompute"), ways.T, strict=True))
    return Choices(
        plain,
        layouts.degree[row],
        layouts.alike[row],
        codes,
        len(offloads) * len(modes),
        np.flatnonzero(_beside(spec, plain, codes, rules)),
    )


def _beside(
    spec: Spec, rows: Skeletons, codes: dict[str, Ints], rules: Sequence[Rule]
) -> Bools:
    """Return which rows hold the rules with which codes, (rows, codes).

    A rule that does not look at the codes is asked once.
    """
    own: dict[str, Any] = {name: each[None] for name, each in codes.items()}
    beside = replace(rows.take((slice(None), None)), **own)
    count = len(next(iter(codes.values())))
    allowed = np.empty((len(rows), count), dtype=bool)
    allowed[:] = holding(rules, spec, beside)
    return allowed


def _with(
    columns: Columns, name: str, kinds: Ints, choices: dict[int, list[int]]
) -> Columns:
    """Return the rows times the choices for their kind."""
    known = np.array(sorted(choices), dtype=np.int64)
    lists = [choices[kind] for kind in known.tolist()]
    lengths = np.array([len(values) for values in lists], dtype=np.int64)
    flat = np.array([value for values in lists for value in values], dtype=np.int64)
    kind = np.searchsorted(known, kinds)
    row = np.repeat(np.arange(len(kinds)), lengths[kind])
    first = np.cumsum(lengths) - lengths
    place = ranges(first[kind], lengths[kind])
    return {**take(columns, row), name: flat[place]}


def _with_divisors(columns: Columns, name: str, wholes: Ints) -> Columns:
    """Return the rows times the divisors of a number of their own."""
    choices = {whole: divisors(whole) for whole in np.unique(wholes).tolist()}
    return _with(columns, name, wholes, choices)


def _shards(rows: Columns) -> Ints:
    """Return a kind of `ZERO_STAGES`.

    Shards of data mean ZeRO; without, the ranks of one sequence may shard alone.
    """
    may_shard = (rows["dp_replicate"] == 1) & (rows["cp"] > 1)
    return np.where(rows["dp_shard"] > 1, 1, np.where(may_shard, 2, 0))


def even_chunks(spec: Spec, rows: Skeletons) -> Ints:
    """Return the layers of a stage where it may be cut into equal chunks, else 1."""
    layers, pp = spec.model.n_layers, rows.pp
    is_even = (layers % pp == 0) & (pp > 1) & (rows.schedule == ONE_F_ONE_B)
    return np.where(is_even, layers // pp, 1)


def whole_chunks(spec: Spec, rows: Skeletons) -> Ints:
    """Return the same where whole rounds of micro-batches pass, as rules ask for."""
    return np.where(rows.microbatches % rows.pp == 0, even_chunks(spec, rows), 1)


def _offloads(spec: Spec) -> list[int]:
    """Offloading presupposes a host, and a framework that does it; or a pin."""
    known = framework_of(spec).offloads if spec.cluster.topology.host else ()
    codes = (OFFLOADS.index(name) for name in spec.pins.offload or ())
    return sorted({KEEPS_ALL, *known, *codes})


def _precisions(spec: Spec) -> list[int]:
    return [PRECISIONS.index(name) for name in spec.training.precisions]


def _most_experts(spec: Spec, rows: Columns) -> Ints:
    """Return over how many GPUs experts can be shared out at most.

    Those are folded out of tp x cp x shards, or replicas where none shard.
    """
    experts = spec.model.moe.n_experts if spec.model.moe else 1
    shard, replicate = rows["dp_shard"], rows["dp_replicate"]
    data = np.where((shard > 1) | (replicate == 1), shard, replicate)
    return np.asarray(np.gcd(experts, rows["tp"] * rows["cp"] * data))
