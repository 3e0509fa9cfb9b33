"""The closed form of a pipeline's time against its task graph, built two ways."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.cost.schedule import (
    closed_form_s,
    in_flight,
    longest_path_s,
    stage_order,
)
from meshwright.skeleton import GPIPE, ONE_F_ONE_B

SCHEDULES = [ONE_F_ONE_B, GPIPE]
schedules = st.sampled_from(SCHEDULES)
seconds = st.integers(1, 1000).map(lambda ticks: ticks / 100)
counts = st.integers(1, 8)
microbatches = st.integers(1, 24)

Task = tuple[str, int, int]


def closed_form(stage_s: list[float], m: int) -> float:
    return float(closed_form_s(np.array([stage_s]), np.array([m]))[0])


def task_graph(
    forward: list[float], backward: list[float], m: int, schedule: int
) -> nx.DiGraph[Task | str]:
    """Build the tasks from what each waits for; an edge weighs what its task takes.

    1F1B, stage e of p (Narayanan et al. 2021, section 2.2.1): it has at most p - e
    micro-batches in flight, so the forward of i + p - e waits for the backward of i;
    before that backward it runs every forward that it may. GPipe (Huang et al. 2019,
    section 2.3): all forwards, then all backwards.
    """
    graph: nx.DiGraph[Task | str] = nx.DiGraph()
    p = len(forward)
    for e in range(p):
        window = m if schedule == GPIPE else min(p - e, m)
        for i in range(m):
            before_f = [("F", e, i - 1)] if i else []
            before_f += [("F", e - 1, i)] if e else []
            before_f += [("B", e, i - window)] if i >= window else []
            before_b = [("F", e, min(i + window, m) - 1)]
            before_b += [("B", e, i - 1)] if i else []
            before_b += [("B", e + 1, i)] if e < p - 1 else []
            for kind, before, took in (
                ("F", before_f, forward[e]),
                ("B", before_b, backward[e]),
            ):
                task: Task = (kind, e, i)
                graph.add_edge("start", task, weight=took)
                for other in before:
                    graph.add_edge(other, task, weight=took)
    return graph


@settings(deadline=None, max_examples=150)
@given(counts, microbatches, seconds, seconds, schedules)
def test_closed_form_is_exact_for_even_stages(
    p: int, m: int, f: float, b: float, schedule: int
) -> None:
    """(m + p - 1) (f + b): bubble (p - 1) / (m + p - 1), Narayanan et al. 2021."""
    walked = longest_path_s([f] * p, [b] * p, m, schedule)
    assert closed_form([f + b] * p, m) == pytest.approx(walked, rel=1e-9)
    assert walked == pytest.approx((m + p - 1) * (f + b), rel=1e-9)


stages = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=7)


@settings(deadline=None, max_examples=200)
@given(st.lists(seconds, min_size=1, max_size=7), seconds, microbatches)
def test_closed_form_is_an_upper_bound_where_backward_is_a_multiple(
    forward: list[float], ratio: float, m: int
) -> None:
    """Stages of whole layers: uneven, but each backward is `ratio` forwards."""
    backward = [ratio * f for f in forward]
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    walked = longest_path_s(forward, backward, m, ONE_F_ONE_B)
    assert walked <= closed_form(both, m) * (1 + 1e-9)
    # No pipeline beats its slowest stage, nor one micro-batch going all the way.
    assert walked >= max(m * max(both), sum(both)) * (1 - 1e-9)


@settings(deadline=None, max_examples=300)
@given(stages, microbatches)
@example([(10.0, 1.0), (1.0, 10.0)], 24)
@example([(0.01, 0.04), (0.04, 0.01), (0.01, 0.01)], 2)
def test_closed_form_misses_no_more_than_filling_and_draining(
    times: list[tuple[float, float]], m: int
) -> None:
    """One stage may have the longest forward and another the longest backward.

    While 1F1B fills and drains, over min(m, p) - 1 micro-batches, each of the two is a
    bottleneck of its own; in between it is their sum on one stage. Of stages (1, 4),
    (4, 1), (1, 1) with two micro-batches: 12 + 5 = 17, walked 18, at most 17 + 3.
    """
    forward, backward = [f for f, _ in times], [b for _, b in times]
    both = [f + b for f, b in times]
    walked = longest_path_s(forward, backward, m, ONE_F_ONE_B)
    filling = (min(m, len(times)) - 1) * (max(forward) + max(backward) - max(both))
    assert walked <= (closed_form(both, m) + filling) * (1 + 1e-9)
    assert walked >= max(m * max(both), sum(both)) * (1 - 1e-9)


@settings(deadline=None, max_examples=150)
@given(st.lists(seconds, min_size=1, max_size=7), seconds, microbatches)
def test_closed_form_is_exact_under_gpipe_where_backward_is_a_multiple(
    forward: list[float], ratio: float, m: int
) -> None:
    """All forwards take sum f + (m - 1) max f, all backwards the same times ratio."""
    backward = [ratio * f for f in forward]
    walked = longest_path_s(forward, backward, m, GPIPE)
    bound = closed_form([f + b for f, b in zip(forward, backward, strict=True)], m)
    assert walked == pytest.approx(bound, rel=1e-9)


@settings(deadline=None, max_examples=150)
@given(stages, microbatches)
def test_gpipe_runs_all_forwards_and_then_all_backwards(
    times: list[tuple[float, float]], m: int
) -> None:
    """Each of the two passes takes its sum and (m - 1) times its own slowest stage.

    Every stage waits for the last one's forwards, which end last of all.
    """
    forward, backward = [f for f, _ in times], [b for _, b in times]
    walked = longest_path_s(forward, backward, m, GPIPE)
    both = [sum(own) + (m - 1) * max(own) for own in (forward, backward)]
    assert walked == pytest.approx(sum(both), rel=1e-9)


@settings(deadline=None, max_examples=150)
@given(stages, st.integers(1, 14), schedules)
def test_longest_path_is_that_of_the_task_graph(
    times: list[tuple[float, float]], m: int, schedule: int
) -> None:
    forward, backward = [f for f, _ in times], [b for _, b in times]
    graph = task_graph(forward, backward, m, schedule)
    longest = nx.dag_longest_path_length(graph, weight="weight")
    walked = longest_path_s(forward, backward, m, schedule)
    assert walked == pytest.approx(longest, rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 9])
def test_in_flight_is_the_peak_of_the_order(schedule: int, p: int, m: int) -> None:
    """Walk each stage: a forward keeps a micro-batch's activations, a backward frees.

    1F1B with p = 4, m = 9 holds 4, 3, 2, 1; GPipe holds 9 on each.
    """
    peaks = []
    for stage in range(p):
        live, peak = 0, 0
        for is_forward, _ in stage_order(stage, p, m, schedule):
            live += 1 if is_forward else -1
            peak = max(peak, live)
        assert live == 0
        peaks.append(peak)
    held = in_flight(np.array([schedule]), np.array([m]), p)[0]
    assert held.tolist() == peaks


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_runs_every_task_once_and_forward_first(schedule: int) -> None:
    for stage in range(4):
        order = stage_order(stage, 4, 9, schedule)
        assert sorted(order) == sorted((k, i) for k in (True, False) for i in range(9))
        for i in range(9):
            assert order.index((True, i)) < order.index((False, i))


def test_1f1b_of_four_stages_by_hand() -> None:
    """Narayanan et al. 2021, figure 4 (top): p = 4, m = 8, backward twice forward.

    (8 + 4 - 1) x 3 = 33 ticks, of which every stage idles 3 x 3.
    """
    walked = longest_path_s([1.0] * 4, [2.0] * 4, 8, ONE_F_ONE_B)
    assert walked == 33
    assert (walked - 8 * 3) / walked == pytest.approx(3 / 11)
