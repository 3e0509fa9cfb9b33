"""The best split of the layers of one pipeline over its stages, exactly.

A step takes sum_e fill_e + max_e pace_e + max_e sync_e, where stage e holds n_e layers
and recomputes r_e of them. Recomputed layers only add time, so that r_e is the least
that memory forces, and every stage is a table by n_e alone. With the pace capped, and
the end of the step, the least sum of fills is a shortest path over the stages (dynamic
programming). That sum only falls as a cap rises: between two caps no step takes less
than the next cap and the sum at the larger one, so that few caps are tried.

Limits on links and rules of the user on splits make slower stages worth while. Those
need CP-SAT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.pipeline import Pairs, Pipeline, PipelineStage, StageAmount

FLOAT_ERROR = 1e-6
"""Part of a layer that a sum of fractions may be off, generously."""

Ints = NDArray[np.int64]

Bools = NDArray[np.bool_]

ENDLESS = 2**60
"""Ticks of a forbidden number of layers, and the price of a row without a known split,
in any unit: no plan has it. A sum of two still fits into 64 bits."""


def best_split(pipeline: Pipeline, below: int = ENDLESS) -> tuple[int, Pairs] | None:
    """Return the ticks of the best split of a pipeline, and that split.

    None says that no split takes less than `below` ticks. Of splits that take equally
    long the most even one comes back, then the lexicographically first: of the layers
    of the stages, then of their recomputed layers.
    """
    least, ways = below, list[_Stages]()
    for number in _numbers(pipeline, below):
        way = _stages(pipeline, number)
        ticks = way.least_ticks(least + 1)
        if ticks < least:
            least, ways = ticks, [way]
        elif ticks == least < below:
            ways.append(way)
    return (least, _first_of(ways, least)) if ways else None


def least_ticks(pipeline: Pipeline, below: int = ENDLESS) -> int:
    """Return the ticks of the best split; `below` where none takes less."""
    for number in _numbers(pipeline, below):
        below = _stages(pipeline, number).least_ticks(below)
    return below


def least_ticks_of_number(pipeline: Pipeline, number: int) -> float:
    """Return ticks that no split goes below if chunks recompute `number` of layers.

    It is infinite where the stages cannot hold all layers. A stage with n layers
    recomputes min(v k, n) of them, so that memory and time grow with n alone.
    """
    stages, layers = pipeline.stages, pipeline.layers
    first = number * pipeline.same_in_chunks
    most = [_most_layers(stage, first) for stage in stages]
    # A stage holds the layers that all others together cannot.
    least = [
        max(stage.fewest_layers, layers - sum(most) + held)
        for stage, held in zip(stages, most, strict=True)
    ]
    pairs = list(zip(least, most, strict=True))
    if sum(least) > layers or any(few > many for few, many in pairs):
        return inf
    again = _least_recomputed(pairs, layers, first)
    fill = _least([stage.fill for stage in stages], layers, again)
    pace = ceil(_least([stage.pace for stage in stages], layers, again) / len(stages))
    filled = list(zip(stages, least, strict=True))
    slowest = max(stage.pace.of(n, min(first, n)) for stage, n in filled)
    last = max(stage.sync.of(n, 0) for stage, n in filled)
    return fill + max(pace, slowest) + last


def _least_recomputed(pairs: Sequence[tuple[int, int]], layers: int, first: int) -> int:
    """Return the fewest layers that stages recompute if each recomputes its `first`.

    `pairs` are the fewest and the most layers of each stage. min(v k, n) is concave in
    n, and so no less than its chord: the stages with the flattest chords are filled.
    """
    again = float(sum(min(first, few) for few, _ in pairs))
    left = layers - sum(few for few, _ in pairs)
    slopes = sorted(
        ((min(first, many) - min(first, few)) / (many - few), many - few)
        for few, many in pairs
        if many > few
    )
    for slope, room in slopes:
        again += slope * min(room, left)
        left -= min(room, left)
    return ceil(again - FLOAT_ERROR)


def _least(amounts: Sequence[StageAmount], layers: int, recomputed: int) -> int:
    """Return the least sum over stages with so many layers in all."""
    fixed = sum(amount.fixed for amount in amounts)
    per_layer = min(amount.per_layer for amount in amounts)
    return (
        fixed
        + layers * per_layer
        + recomputed * min(amount.per_recomputed for amount in amounts)
    )


def _most_layers(stage: PipelineStage, first: int) -> int:
    """Return the most layers that fit on a stage; less than its fewest if none do.

    The `first` of them are recomputed.
    """
    layers = stage.most_layers
    while layers >= stage.fewest_layers:
        if stage.memory.of(layers, min(first, layers)) <= stage.capacity:
            break
        layers -= 1
    return layers


@dataclass(frozen=True)
class _Stages:
    """Ticks of each stage by its number of layers, (options, stages, layers + 1).

    The first option recomputes as few layers as memory forces, the second one layer
    where it forces none. Numbers of layers that are not allowed take ENDLESS ticks.
    """

    layers: int
    fill: Ints
    pace: Ints
    sync: Ints
    recomputed: Ints
    must_recompute: bool
    """Whether some layer must be recomputed."""

    def within(self, allowed: Bools) -> _Stages:
        """Return the stages with only the allowed numbers of layers."""
        return replace(self, fill=np.where(allowed, self.fill, ENDLESS))

    def least_ticks(self, below: int) -> int:
        """Return the ticks of the best split; `below` where none takes less."""
        return _least_sum(self._caps(self.sync), self._least_ending_within, below)

    def _least_ending_within(self, end: int, below: int) -> int:
        """Return the least fill and pace of splits whose step ends within a cap."""
        stages = self.within(self.sync <= end)
        caps = stages._caps(self.pace)
        return _least_sum(caps, lambda pace, _: stages._least_fill(pace), below)

    def _least_fill(self, pace: int) -> int:
        """Return the least fill of splits whose pace is within a cap."""
        return self._paths(self.pace <= pace).least

    def _paths(self, allowed: Bools) -> _Paths:
        """Return the ways to deal out all layers, with the allowed ones on a stage."""
        fill = np.where(allowed, self.fill, ENDLESS)
        again = None
        if self.must_recompute:
            again = np.where(self.recomputed > 0, fill, ENDLESS).min(axis=0)
        return _Paths(fill.min(axis=0), again)

    def paths_within(self, ticks: int) -> Iterator[tuple[_Paths, int]]:
        """Yield the ways to deal out all layers that may take so many ticks.

        Each has the fill that it may take. No split takes less.
        """
        ends = _caps_within(self._caps(self.sync), self._least_ending_within, ticks)
        for end in ends:
            stages, most = self.within(self.sync <= end), ticks - end
            for pace in stages._paces_within(most):
                yield stages._paths(stages.pace <= pace), most - pace

    def _paces_within(self, ticks: int) -> Iterator[int]:
        """Yield the caps on the pace with which both fill and pace may fit in ticks."""
        caps = self._caps(self.pace)
        return _caps_within(caps, lambda pace, _: self._least_fill(pace), ticks)

    def _caps(self, ticks: Ints) -> Ints:
        """Return the caps that leave room for all layers, least first."""
        allowed = self.fill < ENDLESS
        caps = np.unique(ticks[allowed])
        low, high = 0, len(caps)
        while low < high:
            middle = (low + high) // 2
            if _has_room(allowed & (ticks <= caps[middle])):
                high = middle
            else:
                low = middle + 1
        return caps[low:]

    def ticks(self, layers: Ints, option: Ints) -> int:
        """Return the ticks of a split: an option and the layers of each stage."""
        at = (option, np.arange(len(layers)), layers)
        return int(self.fill[at].sum() + self.pace[at].max() + self.sync[at].max())


def _has_room(allowed: Bools) -> bool:
    """Return whether stages can hold all layers, each within some option."""
    held: Bools = np.any(allowed, axis=0)
    fewest, short = held.argmax(axis=1), held[:, ::-1].argmax(axis=1)
    layers = held.shape[1] - 1
    if fewest.sum() > layers or (layers - short).sum() < layers:
        return False
    return bool(held[np.arange(len(held)), fewest].all())


@dataclass(frozen=True)
class _Paths:
    """The ways to deal out all layers to the stages, as paths from stage to stage."""

    fill: Ints
    """Least fill of each stage by its layers, (stages, layers + 1)."""
    again: Ints | None
    """Least fill of stages that recompute, where some stage must, likewise."""

    @property
    def least(self) -> int:
        """Return the least fill of all stages; ENDLESS where none holds all layers."""
        plain, some = self._ends[0]
        return int((plain if self.again is None else some)[-1])

    @cached_property
    def _ends(self) -> list[tuple[Ints, Ints]]:
        """Return the least fill of each stage and those after it, by their layers.

        The second of a pair is that with some stage that recomputes.
        """
        size = self.fill.shape[1]
        held = np.flatnonzero(np.any(self.fill < ENDLESS, axis=0))
        few, many = (int(held[0]), int(held[-1])) if len(held) else (0, 0)
        plain, some = np.full((2, 2 * size - 1), ENDLESS)
        plain[size - 1] = 0

        def longer(path: Ints, stage: Ints) -> Ints:
            # Row n holds the path with so many layers less than n as the stage takes.
            before = np.ndarray(
                (size, many + 1 - few),
                path.dtype,
                path,
                (size - 1 - many) * path.itemsize,
                (path.itemsize, path.itemsize),
            )
            result = np.full(2 * size - 1, ENDLESS)
            fill = (before + stage[few : many + 1][::-1]).min(axis=1)
            np.minimum(fill, ENDLESS, out=result[size - 1 :])
            return result

        ends = [(plain, some)]
        for stage in reversed(range(len(self.fill))):
            if self.again is not None:
                more = longer(plain, self.again[stage])
                some = np.minimum(longer(some, self.fill[stage]), more)
            plain = longer(plain, self.fill[stage])
            ends.append((plain, some))
        return [(plain[size - 1 :], some[size - 1 :]) for plain, some in ends[::-1]]

    def between(self, fewest: int, most: int) -> _Paths:
        """Return the ways where every stage holds layers between two numbers."""
        held = np.arange(self.fill.shape[1])
        is_out = (held < fewest) | (held > most)
        again = None if self.again is None else np.where(is_out, ENDLESS, self.again)
        return _Paths(np.where(is_out, ENDLESS, self.fill), again)

    def first(self, most: int) -> tuple[int, ...]:
        """Return the layers of the first way whose fill is at most `most`."""
        left, layers = self.fill.shape[1] - 1, list[int]()
        plain, some = 0, 0 if self.again is None else ENDLESS
        for stage, fill in enumerate(self.fill):
            after_plain, after_some = (
                after[left::-1] for after in self._ends[stage + 1]
            )
            one = fill[: left + 1]
            more = some + one
            if self.again is not None:
                more = np.minimum(more, plain + self.again[stage][: left + 1])
            whole = np.minimum(more + after_plain, plain + one + after_some)
            held = int(np.argmax(whole <= most))
            plain, some, left = plain + int(one[held]), int(more[held]), left - held
            layers.append(held)
        return tuple(layers)


def _least_sum(caps: Ints, least: Callable[[int, int], int], below: int) -> int:
    """Return the least sum of a cap and what is least under it; at most `below`.

    `least` only falls as the cap rises. Its second argument is a number from which on
    it may return that number.
    """
    best = below

    def tried(index: int, limit: int) -> int:
        nonlocal best
        found = least(int(caps[index]), limit) if limit > 0 else 0
        best = min(best, int(caps[index]) + found)
        return found

    if len(caps):
        tried(0, best - int(caps[0]))
    ranges = [(1, len(caps) - 1, 0)]
    while ranges:
        low, high, floor = ranges.pop()
        if low > high or int(caps[low]) + floor >= best:
            continue
        floor = max(floor, tried(high, best - int(caps[low])))
        middle = (low + high) // 2
        ranges += [(middle + 1, high - 1, floor), (low, min(middle, high - 1), floor)]
    return best


def _caps_within(
    caps: Ints, least: Callable[[int, int], int], most: int
) -> Iterator[int]:
    """Yield the caps whose sum with what is least under them is at most `most`.

    See `_least_sum` for `least`.
    """
    ranges = [(0, len(caps) - 1, 0)]
    while ranges:
        low, high, floor = ranges.pop()
        if low > high or int(caps[low]) + floor > most:
            continue
        cap, middle = int(caps[high]), (low + high) // 2
        found = least(cap, most - int(caps[low]) + 1)
        floor = max(floor, found)
        if cap + found <= most:
            yield cap
        ranges += [(middle + 1, high - 1, floor), (low, min(middle, high - 1), floor)]


def _first_of(ways: list[_Stages], ticks: int) -> Pairs:
    """Return the split of given ticks that comes first among those of some ways."""
    paths = [pair for way in ways for pair in way.paths_within(ticks)]
    layers, count = ways[0].layers, ways[0].fill.shape[1]

    def kept(fewest: int, most: int) -> list[tuple[_Paths, int]]:
        between = ((path.between(fewest, most), fill) for path, fill in paths)
        return [(path, fill) for path, fill in between if path.least <= fill]

    up, down = range(-(-layers // count), layers + 1), range(layers // count, -1, -1)
    largest = next(n for n in up if kept(0, n))
    level = next(found for n in down if (found := kept(n, largest)))
    fewest = np.array(min(path.first(fill) for path, fill in level))
    options = [
        recomputed for way in ways for recomputed in _recomputed(way, fewest, ticks)
    ]
    return tuple(zip(fewest.tolist(), min(options), strict=True))


def _recomputed(way: _Stages, layers: Ints, ticks: int) -> Iterator[tuple[int, ...]]:
    """Yield the recomputed layers of a split that takes so many ticks, first the first.

    Where one layer must be recomputed that memory does not force, it is that of the
    last stage that takes no longer.
    """
    stages = np.arange(len(layers))
    plain = np.zeros(len(layers), dtype=np.int64)
    choices = [plain]
    if way.must_recompute and not way.recomputed[0, stages, layers].any():
        choices = [np.where(stages == e, 1, 0) for e in reversed(stages)]
    for option in choices:
        is_allowed = way.fill[option, stages, layers].max() < ENDLESS
        if is_allowed and way.ticks(layers, option) <= ticks:
            yield tuple(way.recomputed[option, stages, layers].tolist())
            return


def _numbers(pipeline: Pipeline, below: int) -> Iterator[int | None]:
    """Yield how many layers each chunk may recompute in splits below some ticks.

    Where all chunks recompute their first k layers, k is the same for all. Elsewhere
    it is None: each stage recomputes what it must.
    """
    if not pipeline.same_in_chunks:
        yield None
        return
    for number in pipeline.chunk_numbers:
        if least_ticks_of_number(pipeline, number) < below:
            yield number


def _stages(pipeline: Pipeline, number: int | None) -> _Stages:
    """Return the ticks of the stages of a pipeline by their layers.

    `number` is that of the layers that every chunk recomputes, if all do the same.
    """
    count, size = len(pipeline.stages), pipeline.layers + 1
    held = np.broadcast_to(np.arange(size), (count, size))
    memory = _amounts([stage.memory for stage in pipeline.stages])
    capacity, fewest, most, most_again = (
        np.array([getattr(stage, name) for stage in pipeline.stages])[:, None]
        for name in ("capacity", "fewest_layers", "most_layers", "most_recomputed")
    )
    freed = -memory[2]
    missing = np.maximum(memory[0] + held * memory[1] - capacity, 0)
    must_recompute, pins = pipeline.is_recomputing, pipeline.pinned_recompute
    if number is not None:
        again = np.minimum(number * pipeline.same_in_chunks, held)[None]
    elif must_recompute and pipeline.recomputes_every_layer:
        again = held[None]
    elif pins is not None and not pipeline.recomputes_all:
        again = np.broadcast_to(np.array([pins]).T, (1, count, size))
    else:
        forced = -(-missing // np.maximum(freed, 1))
        again = np.stack([forced, np.ones_like(held)][: 1 + must_recompute])
    needed = memory[0] + held * memory[1] - again * freed
    allowed = (needed <= capacity) & (again <= np.minimum(held, most_again))
    allowed &= (held >= fewest) & (held <= most)
    if pins is not None:
        pinned = held if pipeline.recomputes_all else again
        allowed &= pinned == np.array([pins]).T
    if pipeline.pinned_layers is not None:
        allowed &= held == np.array([pipeline.pinned_layers]).T
    fill, pace, sync = (
        _of(_amounts([getattr(stage, name) for stage in pipeline.stages]), held, again)
        for name in ("fill", "pace", "sync")
    )
    return _Stages(
        pipeline.layers,
        np.where(allowed, fill, ENDLESS),
        np.maximum(pace, 0),
        np.maximum(sync, 0),
        again,
        must_recompute,
    )


def _amounts(amounts: list[StageAmount]) -> Ints:
    """Return amounts: fixed, per layer, per recomputed layer, (3, stages, 1)."""
    numbers = [
        (amount.fixed, amount.per_layer, amount.per_recomputed) for amount in amounts
    ]
    return np.array(numbers, dtype=np.int64).T[:, :, None]


def _of(amounts: Ints, held: Ints, recomputed: Ints) -> Ints:
    fixed, per_layer, per_recomputed = amounts
    return np.asarray(fixed + held * per_layer + recomputed * per_recomputed)
