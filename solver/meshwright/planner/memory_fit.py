"""Which skeletons fit in memory: by their state alone, quickly, and for some split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from meshwright.cost.job import Job
from meshwright.cost.price import price_memory, price_state, price_time
from meshwright.frameworks.base.framework import ALL_LAYERS
from meshwright.frameworks.base.registry import (
    partition_of,
    partitioned_layers,
    pinned_chunks,
    recompute_scopes,
)
from meshwright.planner.integer_costs import (
    CHUNK_BYTES,
    Scaled,
    capacity_chunks,
    with_memory,
    with_time,
    zero_costs,
)
from meshwright.planner.rows import Lattice, in_best_case
from meshwright.planner.stages import (
    Stages,
    fits,
    has_all_leading,
    has_even_split,
    interleaved_fits,
    may_fit,
    on_gpu_kinds,
    quick_fits,
    stages_of,
)
from meshwright.planner.unplaced import UnplacedSkeletons
from meshwright.plans.columns import (
    FEW,
    Bools,
    Floats,
    Ints,
    distinct,
    ranges,
    representatives,
    total,
)
from meshwright.plans.schedules import IS_V
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.user_rules import memory_cap_gib
from meshwright.spec.plan_fields import OFFLOADS, SCHEDULES
from meshwright.spec.units import GIB

STAGES_AT_ONCE = 2**16
"""Stages measured at once: the columns of more leave the processor's caches, and memory
for them is asked of the system anew."""

FOUND_AT_ONCE = 2**15
"""Skeletons of which it is found out at once whether they fit, about."""

NOT_KNOWN = -1


def scaled_costs(job: Job, rows: Skeletons) -> Scaled:
    """Return the scaled costs of skeletons, best-case ones for unplaced skeletons."""
    return with_times(job, scaled_memory(job, rows))


def with_times(job: Job, costs: Scaled, price_group: Ints | None = None) -> Scaled:
    """Return costs with the times of their skeletons, best-case ones if unplaced.

    Skeletons with the same `price_group` differ only in schedule and chunks, which no
    price depends on: one skeleton of each group is priced.
    """
    rows, which = costs.rows, np.arange(len(costs))
    if price_group is not None:
        one_of_each, which = representatives(price_group)
        rows = rows.take(one_of_each)
    if not job.gpu_kinds:
        priced = rows if rows.is_placed else in_best_case(job, rows)
        times = with_time(costs, price_time(job, priced), which)
        return _in_scope(job, times)
    by_kind = [
        with_time(costs, price_time(kind, _on_gpu_kind(job, k, rows)), which)
        for k, kind in enumerate(job.gpu_kinds)
    ]
    return Scaled.least([_in_scope(job, times) for times in by_kind])


def _on_gpu_kind(job: Job, kind: int, rows: Skeletons) -> Skeletons:
    """Return skeletons with the least that their groups pay among GPUs of one kind."""
    if rows.kind_paths:
        return rows.on_meshes(rows.kind_paths[kind], rows.mesh)
    return in_best_case(job.gpu_kinds[kind], rows)


def _in_scope(job: Job, costs: Scaled) -> Scaled:
    """Return costs with their recompute scopes.

    Where all layers are recomputed, recomputation becomes part of every layer.
    """
    scope = recompute_scopes(job.spec, costs.rows)
    costs = replace(costs, recompute_scope=scope)
    is_part = scope == ALL_LAYERS
    if not is_part.any():
        return costs
    return replace(
        costs,
        layer=costs.layer + is_part * costs.recompute,
        pace_layer=costs.pace_layer + is_part * costs.pace_recompute,
        activations=costs.activations - is_part * costs.freed,
        recompute=~is_part * costs.recompute,
        pace_recompute=~is_part * costs.pace_recompute,
        freed=~is_part * costs.freed,
    )


def scaled_memory(job: Job, rows: Skeletons) -> Scaled:
    """Return the scaled costs of skeletons with memory alone; all times are zero."""
    memory = with_memory(zero_costs(rows), price_memory(job, rows))
    return _in_scope(job, memory)


class MemoryFit:
    """The memory of the unplaced skeletons of a lattice, and which of them fit.

    Memory is priced once for each price group.
    """

    def __init__(self, job: Job, lattice: Lattice) -> None:
        """Price one skeleton of each price group."""
        one_of_each, self.price_group = representatives(lattice.unplaced.price_group)
        """Group of each unplaced skeleton, numbered from 0."""
        self._job, self._lattice = job, lattice
        self._costs = scaled_memory(job, lattice.rows.take(one_of_each))

    def __len__(self) -> int:
        """Return the number of unplaced skeletons."""
        return len(self.price_group)

    def costs(self, index: Ints) -> Scaled:
        """Return the scaled costs of unplaced skeletons; all times are zero."""
        rows = self._lattice.rows.take(index)
        return self._costs.shared(rows, self.price_group[index])

    def is_fitting(self) -> Bools:
        """Return which unplaced skeletons fit in memory for at least one split.

        Stages are computed only for skeletons that the quick test leaves open.
        """
        rows, model = self._lattice.rows, self._job.spec.model
        if self._job.gpu_kinds:
            costs = self.costs(np.arange(len(rows)))
            return measure_stages(self._job, costs, fits).astype(bool)
        room = capacities(self._job)
        # The quick test asks whether there are several chunks, as price groups do.
        group = self.price_group * len(SCHEDULES) + rows.schedule
        one_of_each, inverse = representatives(group)
        can, cannot = quick_fits(self.costs(one_of_each), model, *room)
        # A stage may hold more than an even share where the framework splits layers.
        can &= partition_of(self._job.spec) is None
        result, is_open = can[inverse], ~(can | cannot)[inverse]
        is_even = (rows.vpp > 1) & has_even_split(self._job.spec, rows)
        is_even &= has_all_leading(model, rows)
        chunked = np.flatnonzero(is_open & is_even)
        result[chunked] = interleaved_fits(self.costs(chunked), model, *room)
        others = np.flatnonzero(is_open & ~is_even)
        costs = self.costs(others)
        if len(others) > FEW and not pinned_chunks(self._job.spec):
            may = np.flatnonzero(may_fit(costs, model, room[0]))
            others, costs = others[may], costs.take(may)
        result[others] = measure_stages(self._job, costs, fits)
        return result


def measure_stages(
    job: Job, costs: Scaled, measure: Callable[[Stages], Floats | Bools]
) -> Floats:
    """Return a measure of every skeleton, computed for each number of stages."""
    result = np.empty(len(costs))
    for index, stages in stages_by_pp(job, costs):
        result[index] = measure(stages)
    return result


def stages_by_pp(job: Job, costs: Scaled) -> Iterator[tuple[Ints, Stages]]:
    """Yield rows that have the same number of stages, and their stages.

    Rows come in blocks, each made when the one before it is done with.
    """
    for index, part in costs_by_pp(costs):
        count = int(part.rows.pp[0])
        size = max(STAGES_AT_ONCE // count, 1)
        for start in range(0, len(part), size):
            block = slice(start, start + size)
            yield index[block], _stages(job, part.take(block), count)


def costs_by_pp(costs: Scaled) -> list[tuple[Ints, Scaled]]:
    """Return, for each number of stages, the rows that have it and their costs."""
    counts = costs.rows.pp
    if len(counts) and (counts == counts[0]).all():
        return [(np.arange(len(counts)), costs)]
    order = np.argsort(counts, kind="stable")
    # Columns are copied once; the parts are slices of the copy.
    together = costs.take(order)
    _, starts = np.unique(together.rows.pp, return_index=True)
    edges = pairwise([*starts.tolist(), len(order)])
    parts = [slice(start, end) for start, end in edges]
    return [(order[part], together.take(part)) for part in parts]


def _stages(job: Job, costs: Scaled, count: int) -> Stages:
    """Return the stages of skeletons, each on the kind of GPU that it lies on."""
    kinds = job.gpu_kinds or (job,)
    # Without times, costs are the same for every kind of GPU.
    by_kind = costs.by_gpu_kind or (costs,) * len(kinds)
    stages = [
        stages_of(
            kind_costs,
            kind.spec.model,
            *capacities(kind),
            partitioned_layers(kind.spec, count),
            pinned_chunks(kind.spec),
        )
        for kind, kind_costs in zip(kinds, by_kind, strict=True)
    ]
    if not job.gpu_kinds:
        return stages[0]
    return on_gpu_kinds(stages, costs, job.gpu_kind_of_stage(count))


def capacities(job: Job) -> tuple[int, int]:
    """Return the chunks of a GPU, and those of its share of a host."""
    host_gib = job.spec.usable_host_gib / job.spec.cluster.gpus_per_host
    usable_gib = min(job.spec.usable_gib, memory_cap_gib(job.spec))
    return capacity_chunks(usable_gib), capacity_chunks(host_gib)


def state_fits(job: Job, lattice: Lattice) -> Bools:
    """Return which unplaced skeletons fit if their stages hold nothing but state.

    A skeleton whose state does not fit has no plan. On several kinds of GPUs no
    skeleton is left out.
    """
    unplaced = lattice.unplaced
    if job.gpu_kinds:
        return np.ones(len(unplaced), dtype=bool)
    group = unplaced.family * len(OFFLOADS) + unplaced.offload
    one_of_each, inverse = representatives(group)
    return _fits(job, unplaced.take(one_of_each).rows)[inverse]


def with_room(job: Job, lattice: Lattice) -> Iterator[Lattice]:
    """Yield the skeletons of a lattice that fit if they hold nothing but state.

    They come in its order, some at once.
    """
    start, count = lattice.unplaced.families
    has_room = families_fit(job, lattice.unplaced.take(start))
    for family in in_parts(count, has_room):
        part = lattice.take(ranges(start[family], count[family]))
        yield part.take(np.flatnonzero(state_fits(job, part)))


def fitting(job: Job, lattice: Lattice) -> Iterator[Lattice]:
    """Yield the skeletons of a lattice that fit for at least one split, in parts."""
    for part in with_room(job, lattice):
        yield part.take(np.flatnonzero(MemoryFit(job, part).is_fitting()))


def in_parts(count: Ints, is_asked: Bools) -> list[Ints]:
    """Return the families that are asked for, in parts of about as many skeletons."""
    family = np.flatnonzero(is_asked)
    before = np.cumsum(count[family]) - count[family]
    edges = np.flatnonzero(np.diff(before // FOUND_AT_ONCE)) + 1
    return np.split(family, edges) if len(family) else []


def families_fit(
    job: Job, first: UnplacedSkeletons, capacity: int | None = None
) -> Bools:
    """Return which families have a skeleton that fits if it holds nothing but state.

    `first` has one skeleton of each; `capacity` is in chunks per GPU, and that of the
    job unless given.
    """
    if job.gpu_kinds:
        return np.ones(len(first), dtype=bool)
    one_of_each, inverse = distinct([*first.state_columns])
    ways, which = first.take(one_of_each).ways_to_offload()
    found = np.zeros(len(one_of_each), dtype=bool)
    found[which[_fits(job, ways.rows, capacity)]] = True
    return found[inverse]


def _fits(job: Job, rows: Skeletons, capacity: int | None = None) -> Bools:
    """Return whether the stages have room for the state of all layers.

    A single stage holds both ends of the model, and so does the first of a V; else the
    first and the last hold one.
    """
    held = price_state(job, rows)
    first, last = total(held.first), total(held.last)
    usable = job.spec.usable_gib * GIB if capacity is None else capacity * CHUNK_BYTES
    layer = total(held.layer)
    layers, parts = job.spec.model.n_layers, job.spec.model.leading_parts
    needed: Floats = np.full(len(rows), layers - parts, float)
    # Each stage has room for one layer more than its room for parts of a layer says.
    spared = np.maximum(-parts * total(held.lead), 0.0)
    needed = needed - spared // np.maximum(layer, 1.0)

    def most_layers(beside: Floats) -> Floats:
        room = np.maximum(usable - beside, 0.0)
        # Where the whole state is on the host, a layer holds nothing here.
        return np.where(layer > 0, room // np.maximum(layer, 1.0), layers)

    both, alone = most_layers(first + last), most_layers(np.zeros(1))
    at_ends = most_layers(first) + most_layers(last)
    at_ends = np.where(IS_V[rows.schedule], both + alone, at_ends)
    several = at_ends + np.maximum(rows.pp - 2, 0) * alone
    most = np.where(rows.pp == 1, both, several)
    result: Bools = most >= needed
    return result


class KnownFits:
    """The skeletons of families that fit on the GPUs of a job, kept by family.

    Each skeleton is kept as its place in its family, which is the same in every part of
    the lattice. What does not fit there fits nowhere with less memory.
    """

    def __init__(self, job: Job, families: int) -> None:
        """Know nothing yet of any family; `job` has the most memory that is asked."""
        self.job = job
        """The job on whose GPUs all of them fit."""
        self._first = np.full(families, NOT_KNOWN, dtype=np.int64)
        """Where the places of each family start."""
        self._count = np.zeros(families, dtype=np.int64)
        self._places = np.zeros(0, dtype=np.int32)

    def covers(self, job: Job) -> bool:
        """Return whether all that fits on the GPUs of another job is known here."""
        pairs = zip(_room(job), _room(self.job), strict=True)
        return all(room <= most for room, most in pairs)

    def rows(self, lattice: Lattice, family: Ints, start: Ints, count: Ints) -> Ints:
        """Return the skeletons of families that may fit, by their place in a lattice.

        The `count` skeletons of a family stand from `start` on.
        """
        is_new = self._first[family] == NOT_KNOWN
        for part in in_parts(count, is_new):
            self._find(lattice, family[part], start[part], count[part])
        fitting = self._count[family]
        place = self._places[ranges(self._first[family], fitting)]
        return np.repeat(start, fitting) + place

    def keep(self, job: Job, memory: MemoryFit) -> Bools:
        """Return which skeletons that fit here fit on the GPUs of a job too."""
        if _room(job) == _room(self.job):
            return np.ones(len(memory), dtype=bool)
        return memory.is_fitting()

    def _find(self, lattice: Lattice, family: Ints, start: Ints, count: Ints) -> None:
        """Find out which skeletons of some families fit."""
        row = ranges(start, count)
        row = row[state_fits(self.job, lattice.take(row))]
        row = row[MemoryFit(self.job, lattice.take(row)).is_fitting()]
        of_family = np.searchsorted(start, row, side="right") - 1
        self._count[family] = np.bincount(of_family, minlength=len(family))
        ends = np.cumsum(self._count[family])
        self._first[family] = len(self._places) + ends - self._count[family]
        place = (row - start[of_family]).astype(np.int32)
        self._places = np.concatenate([self._places, place])


def _room(job: Job) -> list[int]:
    """Return the chunks of a GPU and of its share of a host, for each kind of GPU."""
    return [chunks for kind in job.gpu_kinds or (job,) for chunks in capacities(kind)]
