"""Closed forms of a pipeline's time against its task graph, built two ways."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.cost.schedule import chunk_seconds, closed_form_s, in_flight
from meshwright.cost.schedule import task_graph as model_task_graph
from meshwright.plans.schedules import SCHEDULES as RULES
from meshwright.spec.plan_fields import (
    DUALPIPE_V,
    GPIPE,
    ONE_F_ONE_B,
    ZERO_BUBBLE_H1,
    ZERO_BUBBLE_V,
)
from tests.helpers.timeline import Span, Task, stage_order, timeline

SCHEDULES = [ONE_F_ONE_B, GPIPE, ZERO_BUBBLE_H1]
schedules = st.sampled_from(SCHEDULES)
seconds = st.integers(1, 1000).map(lambda ticks: ticks / 100)
counts = st.integers(1, 8)
shares = st.floats(0.05, 1)
chunks = st.integers(2, 4)
microbatches = st.integers(1, 24)

Times = list[tuple[float, float, float]]
"""F, B and W of each stage, seconds per micro-batch."""
Node = tuple[str, int, int] | str

stages = st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=7)


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[Times, int, int]:
    """Return stages, micro-batches, and chunks."""
    return draw(stages), draw(microbatches), draw(chunks)


def groups(m: int, p: int) -> list[int]:
    """Return the group of each micro-batch, of p at least and as many as there can be.

    Groups are equal, but the last may be smaller.
    """
    for size in range(min(m, p), m + 1):
        group = [i // size for i in range(m)]
        if group.count(group[-1]) >= min(m, p):
            return group
    raise AssertionError


@st.composite
def alike(draw: st.DrawFn) -> Times:
    """Return uneven stages of one sort of layer, whose W is not above F or B."""
    forward, backward = draw(seconds), draw(seconds)
    weight = draw(st.floats(0, 1)) * min(forward, backward)
    layers = draw(st.lists(st.integers(1, 20), min_size=1, max_size=7))
    return [(n * forward, n * backward, n * weight) for n in layers]


def closed_form(times: Times, m: int, schedule: int, v: int = 1) -> float:
    tau, weight = [sum(time) for time in times], [w for _, _, w in times]
    columns = (np.array([value]) for value in (schedule, m, v))
    return float(closed_form_s(np.array([tau]), np.array([weight]), *columns)[0])


def walk(times: Times, m: int, schedule: int, v: int = 1) -> float:
    forward, backward, weight = zip(*times, strict=True)
    graph = model_task_graph(forward, backward, weight, m, schedule, v)
    return graph.longest_path_s


def held_chunks(e: int, p: int, m: int, schedule: int, v: int) -> int:
    """Return the chunks that stage e may hold between their forward and backward."""
    most = {GPIPE: m}.get(schedule, p - e)
    if v > 1:
        most = (v - 1) * groups(m, p).count(0) + 2 * (p - e) - 1
    return min(m * v, most)


def task_graph(times: Times, m: int, schedule: int, v: int) -> nx.DiGraph[Node]:
    """Build the tasks from what each waits for; an edge weighs what its task takes.

    A node is a kind, a chunk's place in the model, 0 to p v - 1, and a micro-batch.
    A stage that holds all that it may waits for a backward before its next forward,
    and before a backward it runs every forward that it may. 1F1B: Narayanan et al.
    2021, section 2.2.1, interleaved 2.2.2, where groups of micro-batches go
    through a chunk before the next chunk. GPipe (Huang et al. 2019, section 2.3): all
    forwards, then all backwards. ZB-H1 (Qi et al. 2023, section 2.1): as 1F1B, and
    every stage has p micro-batches in flight between forward and weight gradients.
    """
    graph: nx.DiGraph[Node] = nx.DiGraph()
    p, apart = len(times), schedule == ZERO_BUBBLE_H1
    group = groups(m, p)

    def wait(task: Node, took: float, before: Iterable[Node]) -> None:
        for other in ["start", *before]:
            graph.add_edge(other, task, weight=took)

    for e, (f, b, w) in enumerate(times):
        each = [(i, c) for i in range(m) for c in range(v)]
        ahead = sorted(each, key=lambda this: (group[this[0]], this[1], this[0]))
        back = sorted(each, key=lambda this: (group[this[0]], -this[1], this[0]))
        forwards: list[Node] = [("F", c * p + e, i) for i, c in ahead]
        backwards: list[Node] = [("B", c * p + e, i) for i, c in back]
        window = held_chunks(e, p, m, schedule, v)
        for k, (i, c) in enumerate(ahead):
            place = c * p + e
            before: list[Node] = [("F", place - 1, i)] if place else []
            before += forwards[k - 1 : k] if k else []
            before += [backwards[k - window]] if k >= window else []
            before += [("W", e, k - p)] if apart and k >= p else []
            wait(("F", place, i), f / v, before)
        for k, (i, c) in enumerate(back):
            place = c * p + e
            before = [("B", place + 1, i)] if place < p * v - 1 else []
            before += backwards[k - 1 : k] if k else []
            before += [forwards[min(k + window, m * v) - 1]]
            before += [("W", e, k - e - 1)] if apart and k > e else []
            wait(("B", place, i), (b if apart else b + w) / v, before)
        for i in range(m if apart else 0):
            before = [("W", e, i - 1)] if i else []
            wait(("W", e, i), w, [("B", e, min(i + e, m - 1)), *before])
    return graph


def longest(times: Times, m: int, schedule: int, v: int = 1) -> float:
    graph = task_graph(times, m, schedule, v)
    return float(nx.dag_longest_path_length(graph, weight="weight"))


@settings(deadline=None, max_examples=150)
@given(stages, st.integers(1, 14), schedules)
def test_longest_path_is_that_of_the_task_graph(
    times: Times, m: int, schedule: int
) -> None:
    walked = walk(times, m, schedule)
    assert walked == pytest.approx(longest(times, m, schedule), rel=1e-9)


@settings(deadline=None, max_examples=80)
@given(interleaved())
def test_interleaved_path_is_that_of_the_task_graph(
    case: tuple[Times, int, int],
) -> None:
    times, m, v = case
    walked = walk(times, m, ONE_F_ONE_B, v)
    assert walked == pytest.approx(longest(times, m, ONE_F_ONE_B, v), rel=1e-9)


@settings(deadline=None, max_examples=150)
@given(counts, microbatches, seconds, seconds, st.sampled_from([ONE_F_ONE_B, GPIPE]))
def test_closed_form_is_exact_for_even_stages(
    p: int, m: int, f: float, b: float, schedule: int
) -> None:
    """(m + p - 1) (f + b): bubble (p - 1) / (m + p - 1), Narayanan et al. 2021."""
    times = [(f, b / 3, 2 * b / 3)] * p
    walked = walk(times, m, schedule)
    assert closed_form(times, m, schedule) == pytest.approx(walked, rel=1e-9)
    assert walked == pytest.approx((m + p - 1) * (f + b), rel=1e-9)


@settings(deadline=None, max_examples=150)
@given(counts, microbatches, chunks, seconds, seconds)
@example(4, 13, 2, 1.0, 2.0)
@example(4, 3, 2, 1.0, 2.0)
def test_interleaved_closed_form_is_exact_for_even_stages(
    p: int, m: int, v: int, f: float, b: float
) -> None:
    """m (f + b) and a bubble of (p - 1) (f + b) / v, Narayanan et al. 2021, 2.2.2.

    With m < p it is the time of one micro-batch and m - 1 chunks.
    """
    times = [(f, b / 2, b / 2)] * p
    walked = walk(times, m, ONE_F_ONE_B, v)
    assert closed_form(times, m, ONE_F_ONE_B, v) == pytest.approx(walked, rel=1e-9)
    count = max(m, p) + (min(m, p) - 1) / v
    assert walked == pytest.approx(count * (f + b), rel=1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(counts, microbatches, seconds, seconds, seconds)
@example(3, 2, 3.0, 4.0, 2.0)
@example(3, 2, 3.0, 4.0, 9.0)
@example(4, 8, 1.0, 1.0, 1.0)
def test_zero_bubble_puts_off_the_least_of_its_three_tasks(
    p: int, m: int, f: float, b: float, w: float
) -> None:
    """(p - 1) (F + B - W), Qi et al. 2023, table 2, is exact where W is least.

    The first stage idles (p - 1) B, whatever it puts off, and the last (p - 1) F, so
    that a W above B or F fills no more than B or F: the formula is then below.
    """
    times, least = [(f, b, w)] * p, min(f, b, w)
    walked = walk(times, m, ZERO_BUBBLE_H1)
    bubble = (p - 1) * (f + b) - (min(m, p) - 1) * least
    assert walked == pytest.approx(m * (f + b + w) + bubble, rel=1e-9)
    formula = closed_form(times, m, ZERO_BUBBLE_H1)
    assert formula <= walked * (1 + 1e-9)
    if w == least:
        assert formula == pytest.approx(walked, rel=1e-9)


@settings(deadline=None, max_examples=200)
@given(alike(), st.integers(0, 17))
def test_closed_forms_are_upper_bounds_where_stages_are_alike(
    times: Times, more: int
) -> None:
    """Stages of whole layers: uneven, but with the same shares of F, B and W."""
    p = len(times)
    both = [sum(time) for time in times]
    for m, schedule in (
        (p + more, ONE_F_ONE_B),
        (1 + more, ONE_F_ONE_B),
        (p + more, ZERO_BUBBLE_H1),
    ):
        walked = walk(times, m, schedule)
        assert walked <= closed_form(times, m, schedule) * (1 + 1e-9)
        # No pipeline beats its slowest stage.
        assert walked >= m * max(both) * (1 - 1e-9)


@settings(deadline=None, max_examples=150)
@given(alike(), microbatches, chunks)
@example([(n, 4 * n, 0.0) for n in (5, 1, 1, 2, 5)], 10, 5)
def test_interleaved_closed_form_is_nearly_an_upper_bound_where_stages_are_alike(
    times: Times, m: int, v: int
) -> None:
    """The walk passes it in one of 10,000 pipelines; the example's, 259.8 to 259."""
    walked = walk(times, m, ONE_F_ONE_B, v)
    assert walked <= closed_form(times, m, ONE_F_ONE_B, v) * 1.02
    assert walked >= m * max(sum(time) for time in times) * (1 - 1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(stages, microbatches)
@example([(10.0, 1.0, 0.0), (1.0, 10.0, 0.0)], 24)
@example([(0.01, 0.04, 0.0), (0.04, 0.01, 0.0), (0.01, 0.01, 0.0)], 2)
def test_closed_form_misses_no_more_than_filling_and_draining(
    times: Times, m: int
) -> None:
    """One stage may have the longest forward and another the longest backward.

    While 1F1B fills and drains, over min(m, p) - 1 micro-batches, each of the two is a
    bottleneck of its own; in between it is their sum on one stage. Of stages (1, 4),
    (4, 1), (1, 1) with two micro-batches: 12 + 5 = 17, walked 18, at most 17 + 3.
    """
    forward, backward = [f for f, _, _ in times], [b + w for _, b, w in times]
    both = [sum(time) for time in times]
    walked = walk(times, m, ONE_F_ONE_B)
    filling = (min(m, len(times)) - 1) * (max(forward) + max(backward) - max(both))
    assert walked <= (closed_form(times, m, ONE_F_ONE_B) + filling) * (1 + 1e-9)
    assert walked >= paths(times, m) * (1 - 1e-9)


def paths(times: Times, m: int) -> float:
    """Return the longest of two paths through each stage under 1F1B, m >= p - e.

    Micro-batch 0 comes down to stage e, whose m forwards and backwards follow, and the
    last goes back up: the stages before it once, itself m times. Or else 0 goes on to
    the last stage and comes back, which spares stage e all but one of the p - e
    forwards of its warm-up, and the last micro-batch does likewise: the stages after
    it twice, itself m - (p - e) + 1 times.
    """
    tau, p = [sum(time) for time in times], len(times)
    direct = [sum(tau[:e]) + m * tau[e] for e in range(p)]
    around = [
        sum(tau[:e]) + (m - p + e + 1) * tau[e] + 2 * sum(tau[e + 1 :])
        for e in range(p)
        if m > p - e
    ]
    return max(direct + around)


@settings(deadline=None, max_examples=150)
@given(stages, microbatches)
def test_gpipe_runs_all_forwards_and_then_all_backwards(times: Times, m: int) -> None:
    """Each of the two passes takes its sum and (m - 1) times its own slowest stage.

    Every stage waits for the last one's forwards, which end last of all. One maximum
    of the sum of both is never above the sum of two maxima.
    """
    forward, backward = [f for f, _, _ in times], [b + w for _, b, w in times]
    walked = walk(times, m, GPIPE)
    both = [sum(one) + (m - 1) * max(one) for one in (forward, backward)]
    assert walked == pytest.approx(sum(both), rel=1e-9)
    assert closed_form(times, m, GPIPE) <= walked * (1 + 1e-9)


@settings(deadline=None, max_examples=150)
@given(alike(), microbatches)
def test_closed_form_is_exact_under_gpipe_where_stages_are_alike(
    times: Times, m: int
) -> None:
    walked = walk(times, m, GPIPE)
    assert walked == pytest.approx(closed_form(times, m, GPIPE), rel=1e-9)


def random_stages(draw: Random, family: str) -> tuple[Times, int]:
    """Return 2 to 8 stages, and micro-batches from p to 4 p.

    A layer takes 1 forward, 1.1 backward, 0.9 for weights. Stages differ by up to two
    layers, in how many they recompute, in both, or in everything.
    """
    p, base = draw.randint(2, 8), draw.randint(4, 12)
    uneven, redo = family in ("layers", "both"), family in ("recompute", "both")
    times: Times = []
    for _ in range(p):
        n = base + (draw.randint(-1, 1) if uneven else 0)
        times.append((n, 1.1 * n + (draw.randint(0, n) if redo else 0), 0.9 * n))
    if family == "anything":
        f, b, w = ([draw.uniform(0.05, 1) for _ in range(p)] for _ in "FBW")
        times = list(zip(f, b, w, strict=True))
    return times, draw.randint(p, 4 * p)


GAPS = {
    ("layers", "1f1b by paths"): (-1.3, 0.0, 0.0),
    ("layers", "1f1b"): (0.0, 1.3, 14.9),
    ("layers", "gpipe"): (0.0, 0.0, 0.0),
    ("layers", "zb-h1"): (0.0, 1.5, 7.4),
    ("layers", "zb-v"): (-1.5, 1.0, 9.1),
    ("layers", "dualpipe-v"): (-0.0, 1.2, 5.5),
    ("layers", "interleaved"): (0.0, 2.5, 12.4),
    ("layers", "interleaved in any groups"): (0.0, 2.3, 14.2),
    ("recompute", "1f1b by paths"): (0.0, 0.0, 0.0),
    ("recompute", "1f1b"): (0.0, 1.5, 7.7),
    ("recompute", "gpipe"): (0.0, 0.0, 0.0),
    ("recompute", "zb-h1"): (0.0, 0.4, 1.6),
    ("recompute", "zb-v"): (-8.2, 0.5, 7.6),
    ("recompute", "dualpipe-v"): (-2.8, 1.0, 6.8),
    ("recompute", "interleaved"): (0.0, 2.5, 9.8),
    ("recompute", "interleaved in any groups"): (0.0, 2.4, 9.0),
    ("both", "1f1b by paths"): (-8.1, -0.1, 0.0),
    ("both", "1f1b"): (0.0, 2.0, 11.1),
    ("both", "gpipe"): (-4.8, -0.5, 0.0),
    ("both", "zb-h1"): (-1.5, 1.3, 8.1),
    ("both", "zb-v"): (-6.0, 0.9, 11.2),
    ("both", "dualpipe-v"): (-3.0, 1.3, 7.5),
    ("both", "interleaved"): (-2.2, 2.6, 11.4),
    ("both", "interleaved in any groups"): (-2.3, 2.4, 10.4),
    ("anything", "1f1b by paths"): (-8.4, -0.8, 0.0),
    ("anything", "1f1b"): (0.0, 3.1, 21.5),
    ("anything", "gpipe"): (-25.2, -6.6, 0.0),
    ("anything", "zb-h1"): (-17.2, -0.4, 22.5),
    ("anything", "zb-v"): (-17.3, -2.0, 9.2),
    ("anything", "dualpipe-v"): (-12.8, -1.3, 6.2),
    ("anything", "interleaved"): (-15.2, 1.0, 11.8),
    ("anything", "interleaved in any groups"): (-15.9, 0.6, 11.8),
}
"""Percent by which a formula is above (+) or below the walk: least, mean, most."""


@pytest.mark.slow
@pytest.mark.parametrize("family", ["layers", "recompute", "both", "anything"])
def test_gaps_of_closed_forms(family: str) -> None:
    """`GAPS` is what 400 pipelines of a family measure: how far to trust a formula."""
    draw, gaps = Random(family), dict[str, list[float]]()
    for _ in range(400):
        times, m = random_stages(draw, family)
        walked = walk(times, m, ONE_F_ONE_B)
        gaps.setdefault("1f1b by paths", []).append(paths(times, m) / walked)
        for name, of, schedule, v in (
            ("1f1b", m, ONE_F_ONE_B, 1),
            ("gpipe", m, GPIPE, 1),
            ("zb-h1", m, ZERO_BUBBLE_H1, 1),
            ("zb-v", m, ZERO_BUBBLE_V, 2),
            ("dualpipe-v", m + len(times), DUALPIPE_V, 2),
            ("interleaved", m - m % len(times), ONE_F_ONE_B, 2),
            ("interleaved in any groups", m, ONE_F_ONE_B, 2),
        ):
            gap = closed_form(times, of, schedule, v) / walk(times, of, schedule, v)
            gaps.setdefault(name, []).append(gap)
    for name, one in gaps.items():
        found = [100 * gap - 100 for gap in (min(one), sum(one) / len(one), max(one))]
        assert found == pytest.approx(GAPS[family, name], abs=0.051), name


@pytest.mark.parametrize(
    ("schedule", "v"),
    [(one, 1) for one in SCHEDULES]
    + [(ONE_F_ONE_B, 2), (ONE_F_ONE_B, 3), (ZERO_BUBBLE_V, 2), (DUALPIPE_V, 2)],
)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 9])
def test_in_flight_is_the_peak_of_the_order(
    schedule: int, v: int, p: int, m: int
) -> None:
    """Walk each stage: a forward keeps a chunk's activations, its last task frees.

    p = 4, m = 9: 1F1B holds 4, 3, 2, 1; GPipe 9 and ZB-H1 4 on each. Interleaved in
    two chunks with groups of 5: 2 x 3 + 5 + 1 = 12, then 10, 8, 6. ZB-V: 2 x 4.
    """
    last = "B" if schedule in (ONE_F_ONE_B, GPIPE) else "W"
    peaks = []
    for stage in range(p):
        live, peak = 0, 0
        for task in stage_order(stage, p, m, schedule, v):
            live += (task.kind == "F") - (task.kind == last)
            peak = max(peak, live)
        assert live == 0
        peaks.append(peak)
    held = in_flight(np.array([schedule]), np.array([m]), np.array([v]), p)
    assert held[0].tolist() == peaks


any_case = st.one_of(interleaved(), st.tuples(stages, microbatches, st.just(1)))


def sources(stage: int, task: Task, p: int, v: int) -> list[tuple[int, Task]]:
    """Return what a task waits for on other stages, by what the tasks are."""
    kind, i, chunk = task
    if kind == "W":
        return [(stage, Task("B", i, chunk))]
    if kind == "F":
        before = (stage - 1, chunk) if stage else (p - 1, chunk - 1)
        return [(before[0], Task("F", i, before[1]))] if before[1] >= 0 else []
    after = (stage + 1, chunk) if stage < p - 1 else (0, chunk + 1)
    if after[1] == v:
        return [(stage, Task("F", i, chunk))]
    return [(after[0], Task("B", i, after[1]))]


def plain_ends(
    times: Times, m: int, schedule: int, v: int
) -> dict[tuple[int, Task], float]:
    """Return when each task ends, asking every stage for its next one in turn."""
    p = len(times)
    left = [stage_order(stage, p, m, schedule, v) for stage in range(p)]
    ends: dict[tuple[int, Task], float] = {}
    clocks = [0.0] * p
    while any(left):
        for stage, (forward, backward, weight) in enumerate(times):
            apart = schedule == ZERO_BUBBLE_H1
            seconds = {
                "F": forward / v,
                "B": (backward if apart else backward + weight) / v,
                "W": weight / v,
            }
            if left[stage]:
                task = left[stage][0]
                waits = sources(stage, task, p, v)
                if all(one in ends for one in waits):
                    ready = max((ends[one] for one in waits), default=0.0)
                    clocks[stage] = max(clocks[stage], ready) + seconds[task.kind]
                    ends[stage, left[stage].pop(0)] = clocks[stage]
    return ends


@settings(deadline=None, max_examples=80)
@given(any_case, schedules)
def test_walk_is_that_of_one_task_at_a_time_to_the_last_digit(
    case: tuple[Times, int, int], schedule: int
) -> None:
    times, m, v = case
    schedule = schedule if v == 1 else ONE_F_ONE_B
    ends = plain_ends(times, m, schedule, v)
    assert walk(times, m, schedule, v) == max(ends.values())
    ran = spans_of(case, schedule)
    assert {(span.stage, span.task): span.end_s for span in ran} == ends


def spans_of(case: tuple[Times, int, int], schedule: int) -> list[Span]:
    times, m, v = case
    forward, backward, weight = zip(*times, strict=True)
    return timeline(forward, backward, weight, m, schedule, v)


@settings(deadline=None, max_examples=80)
@given(any_case, schedules)
def test_timeline_runs_every_task_once_and_one_at_a_time(
    case: tuple[Times, int, int], schedule: int
) -> None:
    times, m, v = case
    schedule = schedule if v == 1 else ONE_F_ONE_B
    spans = spans_of(case, schedule)
    kinds = "FBW" if schedule == ZERO_BUBBLE_H1 else "FB"
    every = {(k, i, c) for k in kinds for i in range(m) for c in range(v)}
    for stage, time in enumerate(times):
        ran = [span for span in spans if span.stage == stage]
        assert {tuple(span.task) for span in ran} == every
        assert len(ran) == len(every)
        assert all(one.end_s <= after.start_s for one, after in pairwise(ran))
        busy = sum(span.end_s - span.start_s for span in ran)
        assert busy == pytest.approx(m * sum(time), rel=1e-9)


@settings(deadline=None, max_examples=80)
@given(any_case, schedules)
def test_timeline_goes_down_the_model_and_back_up(
    case: tuple[Times, int, int], schedule: int
) -> None:
    """A micro-batch passes every chunk forward, then backward, and W after B."""
    times, m, v = case
    schedule = schedule if v == 1 else ONE_F_ONE_B
    ran = {(span.stage, span.task): span for span in spans_of(case, schedule)}
    way = [(e, c) for c in range(v) for e in range(len(times))]
    for i in range(m):
        down = [ran[e, Task("F", i, c)] for e, c in way]
        up = [ran[e, Task("B", i, c)] for e, c in reversed(way)]
        assert all(one.end_s <= after.start_s for one, after in pairwise(down + up))
        if schedule == ZERO_BUBBLE_H1:
            weights = [ran[span.stage, Task("W", i, 0)] for span in up]
            assert all(b.end_s <= w.start_s for b, w in zip(up, weights, strict=True))


def test_1f1b_of_four_stages_by_hand() -> None:
    """Narayanan et al. 2021, figure 4 (top): p = 4, m = 8, backward twice forward.

    (8 + 4 - 1) x 3 = 33 ticks, of which every stage idles 3 x 3; in two chunks each
    (bottom) 8 x 3 + 3 x 3 / 2 = 28.5.
    """
    times = [(1.0, 1.0, 1.0)] * 4
    assert walk(times, 8, ONE_F_ONE_B) == 33
    assert walk(times, 8, ONE_F_ONE_B, 2) == 28.5


def test_unequal_chunks_share_a_stages_seconds_by_their_parts() -> None:
    """Of 8 and 16 s the first stage's chunks take a quarter and three quarters."""
    seconds = ([8.0, 8.0], [16.0, 16.0], [0.0, 0.0])
    parts = [[4.0, 4 / 3], [2.0, 2.0]]
    found = chunk_seconds(*seconds, RULES[ONE_F_ONE_B], 2, parts)
    assert found[:8] == pytest.approx([2, 4, 6, 4, 8, 12, 8, 4])
    even = chunk_seconds(*seconds, RULES[ONE_F_ONE_B], 2)
    assert even[:8] == [4, 4, 4, 4, 8, 8, 8, 8]


def test_interleaved_order_by_hand() -> None:
    """Last of two stages, two chunks, m = 4: a warm-up of (2 - 1) x 2 forwards."""
    order = stage_order(1, 2, 4, ONE_F_ONE_B, 2)
    shown = " ".join(f"{kind}{i}{'ab'[chunk]}" for kind, i, chunk in order)
    assert shown == ("F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a")


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        (0, "F1 F2 F3 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 F8 B5 W5 B6 W6 B7 W7 B8 W8"),
        (2, "F1 F2 B1 F3 B2 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 F8 B7 W5 B8 W6 W7 W8"),
        (3, "F1 B1 F2 B2 F3 B3 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 F8 B8 W5 W6 W7 W8"),
    ],
)
def test_zero_bubble_order_is_that_of_the_figure(stage: int, order: str) -> None:
    """Qi et al. 2023, figure 3 (top): 27 ticks, a bubble of 3 where 1F1B has 9."""
    tasks = stage_order(stage, 4, 8, ZERO_BUBBLE_H1, 1)
    assert " ".join(f"{task.kind}{task.microbatch + 1}" for task in tasks) == order
    assert walk([(1.0, 1.0, 1.0)] * 4, 8, ZERO_BUBBLE_H1) == 27


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_v_has_no_bubble_but_the_way_down_where_tasks_are_alike(
    p: int, rounds: int
) -> None:
    """Qi et al. 2023, section 6: F = B = W, of which a chunk takes 1 each.

    All stages work from their first task on; the last starts after p - 1 forwards.
    With one micro-batch alone nothing overlaps but one W of each but two stages.
    """
    m = 2 * p - 1 + rounds
    times = [(2.0, 2.0, 2.0)] * p
    assert walk(times, m, ZERO_BUBBLE_V, 2) == 6 * m + p - 1
    assert closed_form(times, m, ZERO_BUBBLE_V) == pytest.approx(6 * m + p - 1)
    assert walk(times, 1, ZERO_BUBBLE_V, 2) == 4 * p + 2
    assert closed_form(times, 1, ZERO_BUBBLE_V) == pytest.approx(4 * p + 2)


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 7), seconds, shares, shares, st.integers(0, 12))
def test_v_waits_for_the_backward_where_that_is_the_longest(
    p: int, b: float, forward: float, weights: float, more: int
) -> None:
    """F is not above B, and W from half of it on: p - 1 backwards of a chunk."""
    f, w = forward * b, (1 + weights) / 2 * b
    m = 2 * p - 1 + more
    walked = walk([(2 * f, 2 * b, 2 * w)] * p, m, ZERO_BUBBLE_V, 2)
    assert walked == pytest.approx(2 * m * (f + b + w) + (p - 1) * b)
    told = closed_form([(2 * f, 2 * b, 2 * w)] * p, m, ZERO_BUBBLE_V)
    assert walked - told == pytest.approx((p - 1) * (b - f) / 2, abs=1e-9)


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 7), seconds, shares, shares, st.integers(0, 12))
def test_dualpipe_idles_for_a_chunk_less_twice_its_weights(
    p: int, f: float, backward: float, weights: float, more: int
) -> None:
    """W <= B <= F <= B + W: (p - 1) (F + B - W) of a chunk."""
    b, m = (1 + backward) / 2 * f, 2 * p + more
    w = f - b + weights * (2 * b - f)
    times = [(2 * f, 2 * b, 2 * w)] * p
    told = 2 * m * (f + b + w) + (p - 1) * (f + b - w)
    assert walk(times, m, DUALPIPE_V, 2) == pytest.approx(told)
    assert closed_form(times, m, DUALPIPE_V) == pytest.approx(told)


def test_v_of_two_stages_by_hand() -> None:
    """torch distributed/pipelining/schedules.py, ScheduleZBVZeroBubble, p 2 and m 3."""
    first, last = (
        " ".join(
            f"{task.kind}{task.microbatch}{'ab'[task.chunk]}"
            for task in stage_order(stage, 2, 3, ZERO_BUBBLE_V, 2)
        )
        for stage in (0, 1)
    )
    assert first == (
        "F0a F1a F2a F0b B0b W0b F1b B1b W1b B0a W0a F2b B2b W2b B1a W1a B2a W2a"
    )
    assert last == (
        "F0a F0b F1a F1b B0b W0b F2a B0a W0a F2b B1b W1b B1a B2b B2a W1a W2b W2a"
    )
