"""Pipeline schedules: what each stage runs in which order, and when.

Every forward and backward of every micro-batch through every chunk is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.plans.plan import Plan

WEIGHTS_APART = ("zb-h1", "zb-v", "dualpipe-v")
"""Schedules under which gradients of weights are tasks of their own."""


class Task(NamedTuple):
    """F, B (or its half for inputs), or W, of a micro-batch in a chunk of layers."""

    kind: str
    chunk: int
    batch: int
    whole: bool = False
    """Whether a backward ends with its gradients of weights, a task of no time."""


def order(plan: Plan, stage: int) -> list[Task]:
    """What a stage runs, in its order."""
    if plan.schedule == "zb-v":
        return _zero_bubble_v(plan, stage)
    if plan.schedule == "dualpipe-v":
        return _dualpipe_v(plan.pp, plan.microbatches, stage)
    forwards = [Task("F", chunk, batch) for chunk, batch in _rounds(plan, up=False)]
    backwards = [Task("B", chunk, batch) for chunk, batch in _rounds(plan, up=True)]
    warm = min(_warm_up(plan, stage), len(forwards))
    tasks = forwards[:warm]
    for index, task in enumerate(forwards[warm:]):
        tasks += [task, backwards[index]]
    tasks += backwards[len(forwards) - warm :]
    return _with_weights(tasks, stage) if plan.schedule == "zb-h1" else tasks


def path(plan: Plan) -> list[tuple[int, int]]:
    """Stage and chunk of each part of the model: a V comes back up the stages."""
    down = list(range(plan.pp))
    if plan.schedule in ("zb-v", "dualpipe-v"):
        return [(e, 0) for e in down] + [(e, 1) for e in down[::-1]]
    return [(e, chunk) for chunk in range(plan.vpp) for e in down]


def head_stage(plan: Plan) -> int:
    """Where the head and the loss are."""
    return path(plan)[-1][0]


def _zero_bubble_v(plan: Plan, stage: int) -> list[Task]:
    """Qi et al. 2023, section 6, as PyTorch runs it (ScheduleZBVZeroBubble).

    A stage fills up with forwards of its first chunk, until what came back through the
    second lets backwards start. Then it takes turns: forward, backward and weights of
    one chunk, and of the other. In the end weights wait for all that others wait for.
    """
    p, m = plan.pp, plan.microbatches
    most = max(m, 2 * p - 1)  # of the table; what has no micro-batch is left out
    done = {(kind, chunk): 0 for kind in "FBW" for chunk in (0, 1)}
    tasks: list[Task] = []

    def run(kind: str, chunk: int) -> None:
        tasks.append(Task(kind, chunk, done[kind, chunk]))
        done[kind, chunk] += 1

    while done["F", 0] < 2 * (p - stage) - 1:
        run("F", 0)
    while done["F", 1] < stage:
        run("F", 1)
        run("F", 0)
    while done["F", 1] < p:
        for kind in "FBW":
            run(kind, 1)
    while done["F", 1] < most:
        if done["F", 0] < most:
            run("F", 0)
        run("B", 0)
        run("W", 0)
        for kind in "FBW":
            run(kind, 1)
    while done["B", 1] < most:
        run("B", 0)
        run("B", 1)
    while done["B", 0] < most:
        run("B", 0)
        run("W", 0)
    for chunk in (1, 0):
        while done["W", chunk] < most:
            run("W", chunk)
    return [task for task in tasks if task.batch < m]


def _dualpipe_v(p: int, m: int, stage: int) -> list[Task]:
    """Return what torch's ScheduleDualPipeV makes a rank do, step by step as it does.

    Backwards are whole until the second half of the last ones.
    """
    tasks, late = list[Task](), list[Task]()
    done = dict.fromkeys(("F0", "F1", "B0", "B1"), 0)

    def run(kind: str, chunk: int, whole: bool = False) -> None:
        batch = done[f"{kind}{chunk}"]
        done[f"{kind}{chunk}"] += 1
        tasks.append(Task(kind, chunk, batch, whole))
        if kind == "B":
            (tasks if whole else late).append(Task("W", chunk, batch, whole))

    for _ in range(2 * (p - stage - 1)):
        run("F", 0)
    for _ in range(stage + 1):
        run("F", 0)
        run("F", 1)
    for _ in range(p - stage - 1):
        run("B", 1)
        tasks.append(late.pop(0))
        run("F", 1)
    while done["F1"] < m:
        if done["F0"] < m:
            run("F", 0)
        run("B", 1, whole=True)
        run("F", 1)
        run("B", 0, whole=True)
    for index in range(stage + 1):
        apart = index >= (stage + 1) / 2
        run("B", 1, whole=not apart)
        run("B", 0, whole=index < (stage + 1) // 2)
    while done["B0"] < m:
        tasks.append(late.pop(0))
        run("B", 0)
    return tasks + late


def _rounds(plan: Plan, up: bool) -> list[tuple[int, int]]:
    """Chunks and micro-batches in turn: a group through one chunk at a time.

    Narayanan et al. 2021, section 2.2.2; the backward comes from the last chunk.
    """
    chunks, batches = list(range(plan.vpp)), list(range(plan.microbatches))
    group = _group(plan)
    return [
        (chunk, batch)
        for first in batches[::group]
        for chunk in (reversed(chunks) if up else chunks)
        for batch in batches[first : first + group]
    ]


def _group(plan: Plan) -> int:
    """The least number that leaves no group with fewer micro-batches than stages.

    Megatron-LM, forward_backward_pipelining_with_interleaving, refuses others.
    """
    m = plan.microbatches
    if plan.vpp == 1:
        return m
    sizes = [size for size in range(1, m + 1) if size >= plan.pp]
    return next((n for n in sizes if m % n == 0 or m % n >= plan.pp), m)


def _warm_up(plan: Plan, stage: int) -> int:
    """Forwards before the first backward that follows a forward at once."""
    after = plan.pp - 1 - stage
    if plan.schedule == "gpipe":
        return plan.microbatches
    if plan.vpp > 1:
        # Megatron-LM, get_pp_rank_microbatches.
        return 2 * after + (plan.vpp - 1) * _group(plan)
    return after


def _with_weights(tasks: list[Task], late: int) -> list[Task]:
    """Qi et al. 2023, figure 3: stage e runs W of i after B of i + e, the rest last."""
    result: list[Task] = []
    waiting: list[Task] = []
    for task in tasks:
        result.append(task)
        if task.kind == "B":
            waiting.append(Task("W", task.chunk, task.batch))
        if task.kind == "B" and len(waiting) > late:
            result.append(waiting.pop(0))
    return result + waiting


def most_held(plan: Plan, stage: int, head_alone: bool = False) -> int:
    """The most chunks whose activations a stage holds at once, or logits of batches.

    Activations go with the gradients of weights, logits with the first backward.
    """
    ends = "W" if plan.schedule in WEIGHTS_APART and not head_alone else "B"
    held = most = 0
    for task in order(plan, stage):
        if head_alone and task.chunk != plan.vpp - 1:
            continue
        held += (task.kind == "F") - (task.kind == ends)
        most = max(most, held)
    return most


class Seconds(NamedTuple):
    """Of one micro-batch on one stage, all its chunks together."""

    forward: float
    backward: float
    """Without what only gradients of weights need."""
    weights: float


def run(plan: Plan, stages: Sequence[Seconds]) -> float:
    """When the last task ends: each waits for its stage and for what it is given."""
    orders = [order(plan, stage) for stage in range(plan.pp)]
    at, clock = [0] * plan.pp, [0.0] * plan.pp
    ended: dict[tuple[Task, int], float] = {}
    while any(at[e] < len(orders[e]) for e in range(plan.pp)):
        before = sum(at)
        for e in range(plan.pp):
            while at[e] < len(orders[e]):
                task = orders[e][at[e]]
                source = _source(plan, task, e)
                if source is not None and source not in ended:
                    break
                start = max(clock[e], ended[source] if source else 0.0)
                takes = _seconds(plan, stages[e], task)
                clock[e] = start + takes * _share(plan, e, task.chunk)
                ended[task._replace(whole=False), e] = clock[e]
                at[e] += 1
        assert sum(at) > before, "the schedule is stuck"
    return max(clock)


def _seconds(plan: Plan, seconds: Seconds, task: Task) -> float:
    if task.kind == "W":
        return 0.0 if task.whole else seconds.weights
    if task.kind == "F":
        return seconds.forward
    is_whole = task.whole or plan.schedule not in WEIGHTS_APART
    return seconds.backward + (seconds.weights if is_whole else 0.0)


def _share(plan: Plan, stage: int, chunk: int) -> float:
    """Layers of a chunk over those of its stage; first chunks are the short ones."""
    layers = plan.stages[stage].layers
    largest = -(-layers // plan.vpp)
    short = largest * plan.vpp - layers
    return (largest - (chunk < short)) / layers


def _source(plan: Plan, task: Task, stage: int) -> tuple[Task, int] | None:
    """What a task is given by: its stage and task, or nothing for the first."""
    kind, chunk, batch, _ = task
    if kind == "W":
        return Task("B", chunk, batch), stage
    parts = path(plan)
    at = parts.index((stage, chunk))
    if kind == "F":
        before, found = parts[at - 1]
        return (Task("F", found, batch), before) if at else None
    if at == len(parts) - 1:
        return Task("F", chunk, batch), stage
    after, found = parts[at + 1]
    return Task("B", found, batch), after


def closed_form(
    plan: Plan, stage_s: Sequence[float], weight_s: Sequence[float]
) -> float:
    """The pipeline's seconds as the papers have them for even stages.

    The slowest stage runs all micro-batches; the others add one micro-batch each, or
    one chunk of it where interleaved (Narayanan et al. 2021, sections 2.2.1 and 2.2.2).
    Micro-batches that are fewer than stages wait before each chunk but the first for
    the p - m stages that have none. Under ZB-H1 W fills bubbles: (p - 1) (F + B - W)
    are left (Qi et al. 2023, table 2), with fewer micro-batches than stages one W of
    each but the last.
    """
    p, m = plan.pp, plan.microbatches
    if plan.schedule == "zb-v":
        # A half of F or B, which are taken as alike, on all stages but one; or what the
        # first micro-batch's way down and up again has more than others to fill it.
        part = max(1 / 4, (2 * p - 1 - m) / (2 * p - 2))
        fill = [part * (s - w) for s, w in zip(stage_s, weight_s, strict=True)]
        return sum(fill) + max(m * s - f for s, f in zip(stage_s, fill, strict=True))
    if plan.schedule == "dualpipe-v":
        # Half of F + B - W, those of a chunk, on all stages but one.
        fill = [s / 2 - w for s, w in zip(stage_s, weight_s, strict=True)]
        return sum(fill) + max(m * s - f for s, f in zip(stage_s, fill, strict=True))
    if plan.schedule != "zb-h1":
        waits = (p - min(m, p)) * (1 - 1 / plan.vpp) / max(p - 1, 1)
        fill = [stage_ * (1 / plan.vpp + waits) for stage_ in stage_s]
        return sum(fill) + max(m * s - f for s, f in zip(stage_s, fill, strict=True))
    put_off = (min(m, p) - 1) / (p - 1)
    fill = [s - w - put_off * w for s, w in zip(stage_s, weight_s, strict=True)]
    return sum(fill) + max(m * s - f for s, f in zip(stage_s, fill, strict=True))
