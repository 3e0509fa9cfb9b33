"""Pipeline schedules: their tasks, memory and time, and the table of them all.

A new schedule is a class here, in the table at the end, and a word of the plan field
`schedule`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from meshwright.plans.columns import Floats, Ints
from meshwright.spec.plan_fields import MAKES_V, group_size, way

Kind = Literal["F", "B", "W"]
"""Forward; backward, only for inputs where W is a task; weight gradients."""

KINDS: tuple[Kind, ...] = ("F", "B", "W")


class Task(NamedTuple):
    """One micro-batch's pass through one chunk of a stage's layers."""

    kind: Kind
    microbatch: int
    chunk: int


@dataclass(frozen=True)
class Tasks:
    """The tasks of a step by number: m tasks for each chunk that a micro-batch passes.

    A micro-batch passes p v chunks forward and the same chunks backward, so that a task
    waits for the task m numbers before it. The tasks of weight gradients come p v m
    numbers after their backwards, and wait for those.
    """

    stages: int
    microbatches: int
    vpp: int
    is_v: bool = False

    @property
    def per_kind(self) -> int:
        """Return the number of tasks of each kind."""
        return self.stages * self.vpp * self.microbatches

    @property
    def sources(self) -> tuple[int, int, int]:
        """Return, for each kind, how many numbers before a task its source is."""
        return self.microbatches, self.microbatches, self.per_kind

    @property
    def group(self) -> int:
        """Return how many micro-batches pass a chunk before the next chunk runs."""
        m = self.microbatches
        return group_size(m, self.stages) if self.vpp > 1 else m

    @cached_property
    def first_forwards(self) -> list[int]:
        """Return the forwards of the first stage in order.

        Interleaved, a group of micro-batches at a time passes one chunk after another
        (Narayanan et al. 2021, section 2.2.2; Megatron-LM schedules.py:
        get_schedule_table).
        """
        m, group = self.microbatches, self.group
        return [
            chunk * self.stages * m + index
            for first in range(0, m, group)
            for chunk in range(self.vpp)
            for index in range(first, min(first + group, m))
        ]

    def task(self, number: int) -> Task:
        """Return a task by its number."""
        kind, index = divmod(number, self.per_kind)
        place, microbatch = divmod(index, self.microbatches)
        chunk = place // self.stages
        return Task(KINDS[kind], microbatch, self.vpp - 1 - chunk if kind else chunk)

    @cached_property
    def places(self) -> dict[tuple[int, int], int]:
        """Return how many parts of the model come before each chunk of each stage."""
        parts = way(self.stages, self.vpp, self.is_v)
        return {part: place for place, part in enumerate(parts)}

    def number(self, stage: int, task: Task) -> int:
        """Return the number of a task of a stage."""
        place = self.places[stage, task.chunk]
        if task.kind != "F":
            place = self.stages * self.vpp - 1 - place
        before = KINDS.index(task.kind) * self.per_kind
        return before + place * self.microbatches + task.microbatch

    def source(self, number: int) -> int:
        """Return the task that a task waits for; negative where there is none."""
        return number - self.sources[number // self.per_kind]

    def forwards(self, stage: int) -> list[int]:
        """Return the forwards of a stage in order."""
        return [number + stage * self.microbatches for number in self.first_forwards]

    def backwards(self, stage: int) -> list[int]:
        """Return the backwards of a stage in order."""
        up = self.per_kind + (self.stages - stage - 1) * self.microbatches
        return [number + up for number in self.first_forwards]


def group_sizes(microbatches: Ints, stages: Ints | int) -> Ints:
    """Return the least size of groups of micro-batches, as `group_size` has it."""
    count, least = np.broadcast_arrays(microbatches, stages)
    size: Ints = np.minimum(count, least)
    has_rest = np.nonzero(count % size)
    if len(has_rest[0]):
        base = int(least.max()) + 1
        pairs, which = np.unique(
            count[has_rest] * base + least[has_rest], return_inverse=True
        )
        found = [group_size(*divmod(pair, base)) for pair in pairs.tolist()]
        size[has_rest] = np.array(found)[which]
    return size


Table = tuple[tuple[str, int], ...]
"""Passes of a stage, and how often they run: F, B or W of a chunk, D for a B with its W
at once, and W without a chunk for the one that waits longest."""


class Schedule(ABC):
    """A pipeline schedule of p stages, m micro-batches, and v chunks a stage.

    Memory and time are formulas over columns of skeletons. The order of tasks is a list
    per stage, from which the task graph is built that checks the formulas.
    """

    name: str
    """Name that users write."""
    title: str
    """Name that reports print."""
    splits_backward = False
    """Whether gradients of weights are tasks separate from those of inputs."""
    least_fill = 1.0
    """Least share of its forward that a stage adds to the fill, where W is a task."""

    @property
    def is_v(self) -> bool:
        """Return whether each stage has two chunks that make a V."""
        return self.name in MAKES_V

    @abstractmethod
    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return the most chunks that a stage with `after` stages behind it holds.

        A chunk is one micro-batch's activations of 1/v of the stage's layers, held from
        its forward until its weight gradients.
        """

    @abstractmethod
    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return an upper bound on the micro-batches of a stage, all chunks together.

        It need not be tight: it only shows that skeletons fit without their stages.
        """

    def heads_in_flight(self, microbatches: Ints) -> Ints:
        """Return the micro-batches whose logits the last stage holds."""
        return np.ones_like(microbatches)

    def fill_share(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Floats:
        """Return the share of its time that a stage adds to filling the pipeline."""
        return np.ones(np.shape(vpp))

    def deferred(self, microbatches: Ints, stages: Ints) -> Floats:
        """Return the number of W that the closed form moves from fill to pace.

        W is the time of a stage's weight gradients per micro-batch; see
        `cost.schedule.StepWeights`.
        """
        return np.zeros(np.shape(microbatches))

    @abstractmethod
    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return a stage's tasks in their order."""

    def whole_backwards(self, tasks: Tasks, stage: int) -> set[int]:
        """Return the B of a stage that end with their W, where W is a task.

        Its W follows such a B at once, and takes no time of its own.
        """
        return set()

    def rate_s(self, stage_s: Floats, forward_s: Floats) -> float:
        """Return the seconds per micro-batch of a full pipeline.

        Args:
            stage_s: seconds of each stage per micro-batch.
            forward_s: the part of them in the forward.
        """
        return float(stage_s.max())


def in_pairs(tasks: Tasks, stage: int, warm: int) -> list[int]:
    """Return a stage's tasks: `warm` forwards, pairs, the last backwards."""
    forwards, backwards = tasks.forwards(stage), tasks.backwards(stage)
    warm = min(len(forwards), warm)
    order = forwards[:warm]
    for pair in zip(forwards[warm:], backwards, strict=False):
        order += pair
    return order + backwards[len(forwards) - warm :]


class GPipe(Schedule):
    """All forwards run before the first backward, so that all activations are held.

    Its time is that of 1F1B: even stages that take tau per micro-batch take m tau and a
    bubble of (p - 1) tau (Huang et al. 2019, section 2.3).
    """

    name = "gpipe"
    title = "GPipe"

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return all micro-batches, for every stage (Huang et al. 2019, 2.3)."""
        return np.asarray(microbatches)

    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return all micro-batches."""
        return microbatches

    def heads_in_flight(self, microbatches: Ints) -> Ints:
        """Return all micro-batches."""
        return microbatches

    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return all forwards, and then all backwards."""
        return in_pairs(tasks, stage, tasks.microbatches)

    def rate_s(self, stage_s: Floats, forward_s: Floats) -> float:
        """Return the slowest forward plus the slowest backward of any stages."""
        return float(forward_s.max() + (stage_s - forward_s).max())


class OneFOneB(Schedule):
    """One forward, one backward, after a warm-up that is longest on the first stage.

    Even stages that take tau per micro-batch take m tau and a bubble of (p - 1) tau
    (Narayanan et al. 2021, section 2.2). The interleaved bubble is (p - 1) tau / v
    (section 2.2.2), for any m >= p whose groups have p micro-batches or more. Fewer
    micro-batches than stages leave p - m of them idle between chunks too.
    """

    name = "1f1b"
    title = "1F1B"

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return the most chunks that a stage holds.

        Stage e of p holds min(m, p - e) (Narayanan et al. 2021, section 2.2).
        Interleaved in groups of G it holds a warm-up of 2 (p - e - 1) + (v - 1) G and
        one more, at most all m v (Megatron-LM schedules.py: get_pp_rank_microbatches).
        """
        group = group_sizes(microbatches, np.where(vpp > 1, stages, 1))
        warm = np.where(vpp > 1, 2 * after + (vpp - 1) * group, after)
        held: Ints = np.minimum(microbatches * vpp, warm + 1)
        return held

    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return p, interleaved 2 p or a group, and at most all micro-batches.

        (2 (p - 1) + (v - 1) G + 1) / v is between 2 p - 1 and G.
        """
        group = group_sizes(microbatches, np.where(vpp > 1, stages, 1))
        warm = np.where(vpp > 1, np.maximum(2 * stages, group), stages)
        most: Ints = np.minimum(warm, microbatches)
        return most

    def fill_share(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Floats:
        """Return 1 / v, and more with fewer micro-batches than stages.

        They wait for the p - m other stages before each further chunk, v - 1 times, and
        so take p tau + (m - 1) tau / v: all that micro-batch one takes, and a chunk of
        every other.
        """
        few = np.minimum(microbatches, stages)
        spread = (stages - few + (few - 1) / vpp) / np.maximum(stages - 1, 1)
        return np.asarray(np.where(vpp > 1, spread, 1.0))

    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return pairs of a forward and a backward after a warm-up.

        Interleaved as in Megatron-LM schedules.py: get_pp_rank_microbatches.
        """
        after, more = tasks.stages - stage - 1, (tasks.vpp - 1) * tasks.group
        warm = 2 * after + more if tasks.vpp > 1 else after
        return in_pairs(tasks, stage, warm)


class ZeroBubbleH1(OneFOneB):
    """1F1B with separate tasks for the backward of inputs (B) and of weights (W).

    Even stages take m tau and a bubble of (p - 1) (F + B - W) if m >= p (Qi et al.
    2023, table 2).
    """

    name = "zb-h1"
    title = "ZB-H1"
    splits_backward = True

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return min(m, p), for every stage.

        Stage e holds e micro-batches between backward and weight gradients (Qi et al.
        2023, section 2.3, with M_W = M_B). The first stage thus holds what it does
        under 1F1B, and every other stage as much as the first.
        """
        held: Ints = np.minimum(microbatches * vpp, stages)
        return held

    def deferred(self, microbatches: Ints, stages: Ints) -> Floats:
        """Return 1 + (min(m, p) - 1) / (p - 1).

        The last stage defers W of its first min(m, p) - 1 micro-batches, so that with
        fewer micro-batches than stages the bubble is (p - 1) (F + B) - (m - 1) W.
        """
        more = (np.minimum(microbatches, stages) - 1) / np.maximum(stages - 1, 1)
        return np.asarray(1 + more)

    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return the tasks of 1F1B with weight gradients between them.

        Stage e runs the W of micro-batch i right after the B of micro-batch i + e, and
        its last e W after all else: the shorter the warm-up of a stage, the later W
        starts (Qi et al. 2023, section 2.1 and figure 3, top).
        """
        order: list[int] = []
        waiting: deque[int] = deque()
        for number in super().order(tasks, stage):
            order.append(number)
            if number >= tasks.per_kind:
                waiting.append(number + tasks.per_kind)
                order += [waiting.popleft()] if len(waiting) > stage else []
        return order + list(waiting)


class ZeroBubbleV(Schedule):
    """B and W apart, on stages whose two chunks make a V (Qi et al. 2023, section 6).

    Even stages take m tau and a bubble of (p - 1) B / 2 if m >= 2 p - 1, F and W are
    not above B, and B is not above 2 W. The closed form knows F + B alone: it has
    (p - 1) (F + B) / 4. With fewer micro-batches the first one's way through all stages
    is not filled: (2 p - 1 - m) (F + B) / 2 are left.
    """

    name = "zb-v"
    title = "ZB-V"
    splits_backward = True
    least_fill = 0.25
    more_chunks = 0
    """Chunks that every stage holds beyond 2 p."""

    def in_flight(
        self, after: Ints, microbatches: Ints, vpp: Ints, stages: Ints | int
    ) -> Ints:
        """Return 2 p chunks, as much as 1F1B holds on its first stage, on every stage.

        DualPipeV holds one more. With few micro-batches stage e holds m + 1 + e.
        """
        most = np.minimum(vpp * microbatches, vpp * stages + self.more_chunks)
        held: Ints = np.minimum(most, microbatches + stages - after)
        return held

    def most_in_flight(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Ints:
        """Return p, one more where there are more chunks, and at most all."""
        most: Ints = np.minimum(microbatches, stages + self.more_chunks)
        return most

    def fill_share(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Floats:
        """Return 1/4, and with few micro-batches what their way leaves unfilled."""
        unfilled = (2 * stages - 1 - microbatches) / (2 * np.maximum(stages - 1, 1))
        return np.asarray(np.maximum(unfilled, self.least_fill))

    def deferred(self, microbatches: Ints, stages: Ints) -> Floats:
        """Return the share of tau too: W is no part of the fill."""
        return self.fill_share(microbatches, 2 * np.ones_like(stages), stages)

    def order(self, tasks: Tasks, stage: int) -> list[int]:
        """Return the tasks of the table of PyTorch's schedule, of all micro-batches.

        Where the table is for more micro-batches, those are left out.
        """
        return [tasks.number(stage, task) for task, _ in self._passes(tasks, stage)]

    def whole_backwards(self, tasks: Tasks, stage: int) -> set[int]:
        """Return the backwards that PyTorch does not split."""
        passes = self._passes(tasks, stage)
        return {tasks.number(stage, task) for task, is_whole in passes if is_whole}

    def _table(self, stages: int, stage: int, microbatches: int) -> Table:
        """Return ScheduleZBVZeroBubble, which takes 2 p - 1 micro-batches or more.

        (torch 2.13 distributed/pipelining/schedules.py)
        """
        after, planned = stages - stage, max(microbatches, 2 * stages - 1)
        return (
            ("F0", 2 * after - 1),
            ("F1 F0", stage),
            ("F1 B1 W1", after),
            ("F0 B0 W0 F1 B1 W1", planned - stages - after + 1),
            ("B0 W0 F1 B1 W1", after - 1),
            ("B0 B1", stage),
            ("B0 W0", after),
            ("W1", stage),
            ("W0", stage),
        )

    def _passes(self, tasks: Tasks, stage: int) -> list[tuple[Task, bool]]:
        """Return the tasks of a stage in order, and which are whole backwards."""
        run, waiting = Counter[str](), deque[Task]()
        passes = list[tuple[Task, bool]]()
        table = self._table(tasks.stages, stage, tasks.microbatches)
        for name in (name for names, times in table for name in names.split() * times):
            if name == "W":
                passes.append((waiting.popleft(), False))
                continue
            kind = KINDS["FBW".index(name[0].replace("D", "B"))]
            task = Task(kind, run[kind + name[1]], int(name[1]))
            run[kind + name[1]] += 1
            passes.append((task, name[0] == "D"))
            if name[0] == "D":
                passes.append((task._replace(kind="W"), False))
            elif kind == "B":
                waiting.append(task._replace(kind="W"))
        return [one for one in passes if one[0].microbatch < tasks.microbatches]


class DualPipeV(ZeroBubbleV):
    """A V whose forwards and backwards alternate, most of them whole (DeepSeek 2025).

    Only the backwards that fill the ends of a step have W apart. Even stages take m tau
    and a bubble of (p - 1) (F + B - W) / 2 if B is not above F. PyTorch runs the two
    halves of its pairs one after another, so that nothing hides behind the other.
    """

    name = "dualpipe-v"
    title = "DualPipeV"
    least_fill = 0.5
    more_chunks = 1

    def fill_share(self, microbatches: Ints, vpp: Ints, stages: Ints) -> Floats:
        """Return 1/2: the bubble is of chunks, two of which make a stage."""
        return np.full(np.broadcast_shapes(np.shape(vpp), np.shape(stages)), 0.5)

    def deferred(self, microbatches: Ints, stages: Ints) -> Floats:
        """Return 1: of the fill's (F + B + W) / 2 it leaves (F + B - W) / 2."""
        return np.ones(np.shape(microbatches))

    def _table(self, stages: int, stage: int, microbatches: int) -> Table:
        """Return ScheduleDualPipeV, which takes 2 p micro-batches or more.

        (torch 2.13 distributed/pipelining/schedules.py)
        """
        after, half = stages - stage - 1, (stage + 1) // 2
        planned = max(microbatches, 2 * stages)
        return (
            ("F0", 2 * after),
            ("F0 F1", stage + 1),
            ("B1 W F1", after),
            ("F0 D1 F1 D0", planned - 2 * stages + stage + 1),
            ("D1 F1 D0", after),
            ("D1 D0", half),
            ("D1 B0", (stage + 1) % 2),
            ("B1 B0", half),
            ("W B0", after),
            ("W", stage + 1),
        )


SCHEDULES: tuple[Schedule, ...] = (
    OneFOneB(),
    GPipe(),
    ZeroBubbleH1(),
    ZeroBubbleV(),
    DualPipeV(),
)


SPLITS_BACKWARD = np.array([schedule.splits_backward for schedule in SCHEDULES])
"""By code, whether gradients of weights are tasks of a schedule."""

IS_V = np.array([schedule.is_v for schedule in SCHEDULES])
"""By code, whether the two chunks of each stage make a V."""

LEAST_FILL = np.array([schedule.least_fill for schedule in SCHEDULES])
"""By code, `Schedule.least_fill`."""


def schedule_named(name: str) -> Schedule:
    """Return a schedule by the name that users write."""
    return next(schedule for schedule in SCHEDULES if schedule.name == name)


def by_schedule(schedule: Ints, formula: Callable[[Schedule], Any]) -> Any:
    """Return a formula for every row, by the code of its schedule."""
    result = formula(SCHEDULES[0])
    last = int(schedule.max(initial=0))
    for code, other in enumerate(SCHEDULES[1 : last + 1], 1):
        has_code = schedule == code
        if has_code.any():
            result = np.where(has_code, formula(other), result)
    return result
