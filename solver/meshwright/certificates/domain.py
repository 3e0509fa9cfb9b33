"""Every value of every decision, legal or not, and the rules that refuse skeletons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.cost.job import Job
from meshwright.errors import InternalError
from meshwright.frameworks.base.registry import framework_of, pinned_chunks, tries_v
from meshwright.planner.degrees import degree_rows, enumerate_degrees
from meshwright.planner.rows import Lattice
from meshwright.planner.unplaced import UnplacedSkeletons, expert_splits
from meshwright.plans.columns import Bools, Ints
from meshwright.plans.rule import Rule, columns_seen
from meshwright.plans.schedules import IS_V
from meshwright.plans.skeletons import Skeletons, plain_columns
from meshwright.rules.legality import degree_rules, framework_rules, plan_rules
from meshwright.spec.base import divisors
from meshwright.spec.plan_fields import (
    AXES,
    KEEPS_ALL,
    ONE_F_ONE_B,
    SCHEDULES,
)
from meshwright.topology.fabric import free_paths

DECISIONS = (
    *("tp", "pp", "cp", "dp_shard", "dp_replicate"),
    *("micro_batch", "zero", "sequence_parallel", "ep", "etp", "schedule", "vpp"),
    *("precision", "offload", "recompute"),
)
"""The decisions of a skeleton, in the order in which the tree splits by them."""

DEGREES = 5
"""How many of them are degrees, whose product is the number of GPUs."""

WAY = ("recompute", "recompute_modules", "recompute_segment")
"""The plan fields that the last decision stands for."""

WAYS = frozenset(("offload", *WAY))
"""Values by which a plan frees memory."""

OWN = DECISIONS[DEGREES:]
"""The decisions after the degrees."""

FREEING = 2
"""How many decisions come last that free memory: offload and recomputation."""

CHUNKS = "layers_cover_chunks"
"""A rule that is arithmetic of the model unless layers are pinned."""

ARITHMETIC = frozenset(
    (
        "heads_divisible",
        "mlp_divisible",
        "attention_groups",
        "shared_experts_divisible",
        "batch_divisible",
        "layers_cover_stages",
        "context_divisible",
        "sequence_divisible",
        "zero_bubble_recompute",
        "recompute_modules",
        "recompute_segment",
        "recompute_segment_weights",
        CHUNKS,
        "precision_chosen",
    )
)
"""Rules whose arithmetic a verifier computes; others are listed as tables."""

MESHES = Rule(
    "meshes",
    "some mesh of these degrees keeps the rules on links and levels of the spec",
    "the spec",
    lambda _spec, rows: np.zeros(len(rows.tp), dtype=bool),
)
"""Broken by degrees whose meshes all break a rule."""


@dataclass(frozen=True)
class Domain:
    """The decisions of a job: all values of each, given those before it."""

    job: Job
    lattice: Lattice

    @cached_property
    def ways(self) -> Ints:
        """Return the ways to recompute that are tried, (ways, 3)."""
        size = self._unplaced.recompute_ways
        return np.stack([self._unplaced.ways[name][:size] for name in WAY], axis=1)

    @cached_property
    def precisions(self) -> Ints:
        """Return the codes of the precisions to try."""
        return self._unplaced.ways["precision"][:: self._unplaced.ways_to_free]

    @cached_property
    def offloads(self) -> Ints:
        """Return the codes of offload to try."""
        first = self._unplaced.ways["offload"][: self._unplaced.ways_to_free]
        return first[:: self._unplaced.recompute_ways]

    @cached_property
    def schedules(self) -> Ints:
        """Return the codes of the schedules to try."""
        return np.flatnonzero(~IS_V | tries_v(self.job.spec))

    @property
    def _unplaced(self) -> UnplacedSkeletons:
        return self.lattice.unplaced

    @cached_property
    def degrees(self) -> list[tuple[int, ...]]:
        """Return all degrees whose product is the number of GPUs, in order."""
        every, _ = enumerate_degrees((int(np.prod(self.job.fabric.sizes)),))
        order = [AXES.index(name) for name in DECISIONS[:DEGREES]]
        return sorted(map(tuple, every[:, order].tolist()))

    @cached_property
    def degree_rules(self) -> list[Rule]:
        """Return the rules on degrees, the last of which is about their meshes."""
        return [*degree_rules(self.job.spec), MESHES]

    @cached_property
    def rules(self) -> list[Rule]:
        """Return all rules: those on degrees, then those on whole skeletons."""
        return [*self.degree_rules, *plan_rules(self.job.spec)]

    @cached_property
    def refused_degrees(self) -> dict[tuple[int, ...], Bools]:
        """Return which rules on degrees each of the degrees breaks, if any."""
        order = [DECISIONS.index(name) for name in AXES]
        rows = degree_rows(np.array(self.degrees)[:, order])
        breaks = [~rule.holds(self.job.spec, rows) for rule in self.degree_rules[:-1]]
        broken = np.array([np.broadcast_to(each, len(rows)) for each in breaks])
        known = set(map(tuple, self.lattice.degrees.tolist()))
        listed = [tuple(d[place] for place in order) in known for d in self.degrees]
        no_mesh = ~broken.any(axis=0) & ~np.array(listed)
        broken = np.vstack([broken, no_mesh])
        pairs = zip(self.degrees, broken.T, strict=True)
        return {degrees: rules for degrees, rules in pairs if rules.any()}

    def rows(self, degrees: tuple[int, ...]) -> Ints:
        """Return all values of the other decisions but the freeing ones, in order.

        The shape is (rows, decisions); `freed` crosses them with the freeing ones.
        """
        spec, (tp, pp, cp, shard, replicate) = self.job.spec, degrees
        per_rank = max(spec.training.global_batch // (shard * replicate), 1)
        experts = spec.model.moe.n_experts if spec.model.moe else 1
        data = shard if shard > 1 or replicate == 1 else replicate
        zero = [1, 2, 3] if shard > 1 else [0, 1, 2, 3] if replicate == 1 else [0]
        layers = spec.model.n_layers
        is_even = layers % pp == 0 or framework_of(spec).has_uneven_chunks
        chunks = divisors(-(-layers // pp)) if pp > 1 and is_even else [1]
        schedules = self.schedules.tolist() if pp > 1 else [ONE_F_ONE_B]
        by_schedule = {ONE_F_ONE_B: chunks}
        by_schedule |= dict.fromkeys(
            np.flatnonzero(IS_V).tolist(), [2] if 2 in chunks else []
        )
        scheduled = [
            (schedule, vpp)
            for schedule in schedules
            for vpp in by_schedule.get(schedule, [1])
        ]
        spread = [
            (ep, etp)
            for ep in divisors(int(np.gcd(experts, tp * cp * data)))
            for etp in expert_splits(spec, tp)
            if tp * cp * data // etp % ep == 0
        ]
        lists = [
            divisors(per_rank),
            zero,
            [0, 1] if tp > 1 else [0],
            range(len(spread)),
            range(len(scheduled)),
            self.precisions.tolist(),
        ]
        grid = np.meshgrid(*map(np.array, lists), indexing="ij")
        found = [column.ravel() for column in grid]
        found[3:5] = [
            *np.array(spread)[found[3]].T,
            *np.array(scheduled)[found[4]].T,
        ]
        return np.stack(found, axis=1)

    def freed(self, rows: Ints) -> Ints:
        """Return rows crossed with all ways to offload and to recompute, in order."""
        ways = len(self.ways)
        offload = np.repeat(self.offloads, ways)
        way = np.tile(np.arange(ways), len(self.offloads))
        last = np.tile(np.stack([offload, way], axis=1), (len(rows), 1))
        return np.hstack([np.repeat(rows, len(offload), axis=0), last])

    def keeping(self, rows: Ints) -> Ints:
        """Return rows that keep all on the GPU, which no price is below."""
        return np.hstack([rows, np.tile([KEEPS_ALL, 0], (len(rows), 1))])

    def skeletons(self, degrees: tuple[int, ...], rows: Ints) -> Skeletons:
        """Return rows of some degrees as skeletons without a mesh."""
        count, chosen = len(rows), dict(zip(OWN, rows.T, strict=True))
        way = chosen.pop("recompute")
        columns: dict[str, Any] = plain_columns(count) | chosen
        columns |= {name: self.ways[way, place] for place, name in enumerate(WAY)}
        for name, degree in zip(DECISIONS, degrees, strict=False):
            columns[name] = np.full(count, degree)
        columns["sequence_parallel"] = columns["sequence_parallel"].astype(bool)
        dp = degrees[3] * degrees[4]
        per_rank = max(self.job.spec.training.global_batch // dp, 1)
        columns["microbatches"] = per_rank // columns["micro_batch"]
        paths, mesh = free_paths(count, 0), np.full(count, -1)
        return Skeletons(**columns, paths=paths, mesh=mesh)

    def column(self, name: str, degrees: tuple[int, ...], rows: Ints) -> Ints:
        """Return a decision of rows of some degrees, of which there may be none."""
        if name in DECISIONS[:DEGREES]:
            degree = degrees[DECISIONS.index(name)]
            return np.full(max(len(rows), 1), degree)
        if name in WAY:
            return np.asarray(self.ways[rows[:, -1], WAY.index(name)])
        if name == "microbatches":
            per_rank = self.job.spec.training.global_batch // (degrees[3] * degrees[4])
            return np.asarray(max(per_rank, 1) // rows[:, 0])
        return np.asarray(rows[:, OWN.index(name)])

    def refused_all_ways(self, degrees: tuple[int, ...], rows: Ints) -> Bools:
        """Return which rules refuse rows in all ways to free memory, (rules, rows).

        Rules that look at these ways are left out, but for those of the framework: a
        layout that it does not run plainly is not run otherwise.
        """
        every = self.skeletons(degrees, self.keeping(rows))
        broken = self._broken(self.rules, every) & ~self._looks_at_ways[:, None]
        return self._with_plain(every, broken, np.asarray(~broken.any(axis=0)))

    def refused(self, degrees: tuple[int, ...], rows: Ints, is_legal: Bools) -> Bools:
        """Return which rules each row breaks, (rules, rows); none of a legal row.

        Raises:
            InternalError: a row is not legal, and breaks no rule.
        """
        every = self.skeletons(degrees, rows)
        broken = self._broken(self.rules, every)
        is_open = np.asarray(~is_legal & ~broken.any(axis=0))
        broken = self._with_plain(every, broken, is_open)
        if (~is_legal & ~broken.any(axis=0)).any():
            raise InternalError(f"degrees {degrees}: no rule refuses an illegal plan")
        return broken & ~is_legal

    def _with_plain(self, every: Skeletons, broken: Bools, is_open: Bools) -> Bools:
        """Add the rules of the framework that open rows break in their plainest way."""
        if is_open.any():
            count = len(every.tp)
            columns: dict[str, Any] = {
                name: np.full(count, self.ways[0, i]) for i, name in enumerate(WAY)
            }
            columns["precision"] = np.full(count, self.precisions[0])
            columns["offload"] = np.full(count, KEEPS_ALL)
            plain = replace(every, **columns)
            known = framework_rules(self.job.spec)
            index = len(self.degree_rules)
            plainly = self._broken(known, plain) & is_open
            broken[index : index + len(known)] |= plainly
        return broken

    @cached_property
    def _looks_at_ways(self) -> Bools:
        """Return which rules look at offload or at recomputation."""
        names = (() if rule is MESHES else looked_at(rule, self) for rule in self.rules)
        return np.array([not WAYS.isdisjoint(each) for each in names])

    def _broken(self, rules: Sequence[Rule], rows: Skeletons) -> Bools:
        broken = np.zeros((len(rules), len(rows.tp)), dtype=bool)
        for rule, breaks in zip(rules, broken, strict=True):
            if rule is not MESHES:
                breaks[:] = ~np.asarray(rule.holds(self.job.spec, rows))
        return broken

    def keys(self, rows: Ints) -> Ints:
        """Return one number for the decisions after the degrees of each row.

        Rows may lack the decisions that free memory.
        """
        key = np.zeros(len(rows), dtype=np.int64)
        for column, size in zip(rows.T, self._sizes, strict=False):
            key = key * size + column
        return key

    @cached_property
    def _sizes(self) -> list[int]:
        batch, layers = (
            self.job.spec.training.global_batch,
            self.job.spec.model.n_layers,
        )
        experts = self.job.spec.model.moe.n_experts if self.job.spec.model.moe else 1
        parts = self.job.spec.model.n_heads if self.job.spec.pins.etp else 1
        most = [batch, 3, 1, experts, parts, len(SCHEDULES)]
        most += [layers, 8, 4, len(self.ways)]
        return [number + 1 for number in most]

    def own_rows(self, index: Ints) -> Ints:
        """Return the decisions after the degrees of unplaced skeletons."""
        part = self.lattice.unplaced.take(index)
        columns = [getattr(part.rows, name) for name in OWN[:-1]]
        return np.stack([*columns, part.recompute_way], axis=1).astype(np.int64)


@dataclass
class RuleList:
    """The rules that refuse something, each told once in the certificate."""

    domain: Domain

    def __post_init__(self) -> None:
        """Start with none."""
        self._number: dict[int, int] = {}
        self._looks_at: dict[int, tuple[str, ...]] = {}
        self._tables: dict[int, set[tuple[int, ...]]] = {}

    def number(self, rule: int, rows: Sequence[tuple[tuple[int, ...], Ints]]) -> int:
        """Return the number of a rule in the certificate, which refuses some rows.

        Rows are given by their degrees; none stand for degrees alone.
        """
        number = self._number.setdefault(rule, len(self._number))
        if not self._is_computed(rule):
            if rule not in self._looks_at:
                self._looks_at[rule] = self._looked_at(rule)
            looks_at = self._looks_at[rule]
            table = self._tables.setdefault(rule, set())
            looks_at_ways = not WAYS.isdisjoint(looks_at)
            for degrees, some in rows:
                if looks_at_ways and some.shape[1] < len(OWN):
                    some = self.domain.freed(some)
                columns = [self.domain.column(n, degrees, some) for n in looks_at]
                table.update(zip(*map(np.ndarray.tolist, columns), strict=True))
        return number

    def _is_computed(self, rule: int) -> bool:
        name = self.domain.rules[rule].name
        if name == CHUNKS and pinned_chunks(self.domain.job.spec) is not None:
            return False
        return name in ARITHMETIC or name.startswith("pin ")

    def _looked_at(self, rule: int) -> tuple[str, ...]:
        """Return the decisions that a rule looks at; all degrees if it is on meshes."""
        found = self.domain.rules[rule]
        if found is MESHES:
            return DECISIONS[:DEGREES]
        return looked_at(found, self.domain)

    def told(self) -> list[dict[str, Any]]:
        """Return the rules as parts of the certificate."""
        return [self._told(rule) for rule in self._number]

    def _told(self, rule: int) -> dict[str, Any]:
        found = self.domain.rules[rule]
        words = {"name": found.name, "sentence": found.sentence, "source": found.source}
        if self._is_computed(rule):
            return dict(words)
        if found.name in ARITHMETIC:
            words["name"] = f"{found.name}_pinned"
        table = [list(row) for row in sorted(self._tables[rule])]
        return {**words, "looks_at": list(self._looks_at[rule]), "table": table}


def looked_at(rule: Rule, domain: Domain) -> tuple[str, ...]:
    """Return the decisions that a rule looks at, of those that a table may name."""
    degrees = domain.degrees[0]
    rows = domain.skeletons(degrees, domain.keeping(domain.rows(degrees)[:1]))
    seen = columns_seen(rule, domain.job.spec, rows)
    known = (*DECISIONS, *WAY[1:], "microbatches")
    return tuple(name for name in known if name in seen) or ("tp",)
