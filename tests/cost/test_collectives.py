"""Collectives obey what alpha-beta rings and trees obey."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost.traffic import (
    all_gather_s,
    all_reduce_s,
    exposed_in_turn_s,
    hidden_s,
    reduce_scatter_s,
    send_s,
)

FORMULAS = [all_gather_s, reduce_scatter_s, all_reduce_s]
formulas = st.sampled_from(FORMULAS)
byte_counts = st.floats(1, 1e12)
s_per_byte = st.floats(1e-13, 1e-8)
latencies = st.floats(0, 1e-3)
members = st.integers(1, 20_000)
run = settings(deadline=None, max_examples=200)


def priced(formula: object, whole: float, n: int, rate: float, latency: float) -> float:
    assert callable(formula)
    columns = np.array([whole]), np.array([n]), np.array([rate]), np.array([latency])
    return float(formula(*columns)[0])


@run
@given(formulas, byte_counts, members, members, s_per_byte, latencies)
def test_more_members_are_never_faster(
    formula: object, whole: float, a: int, b: int, rate: float, latency: float
) -> None:
    few, many = sorted((a, b))
    slower = priced(formula, whole, many, rate, latency)
    assert priced(formula, whole, few, rate, latency) <= slower * (1 + 1e-12)


@run
@given(formulas, byte_counts, s_per_byte, latencies)
def test_one_member_is_free(
    formula: object, whole: float, rate: float, latency: float
) -> None:
    assert priced(formula, whole, 1, rate, latency) == 0


@run
@given(byte_counts, members, s_per_byte)
def test_ring_all_reduce_is_reduce_scatter_and_all_gather(
    whole: float, n: int, rate: float
) -> None:
    """Without latency the ring wins: 2 (n - 1) / n passes over the data to 2.

    Thakur et al. 2005 (Rabenseifner's algorithm).
    """
    halves = priced(reduce_scatter_s, whole, n, rate, 0.0)
    halves += priced(all_gather_s, whole, n, rate, 0.0)
    both = priced(all_reduce_s, whole, n, rate, 0.0)
    assert both == pytest.approx(halves, rel=1e-12)
    assert both == pytest.approx(2 * (n - 1) / n * whole * rate, rel=1e-12)


@run
@given(byte_counts, members, s_per_byte, latencies)
def test_all_reduce_is_never_slower_than_its_halves(
    whole: float, n: int, rate: float, latency: float
) -> None:
    halves = priced(reduce_scatter_s, whole, n, rate, latency)
    halves += priced(all_gather_s, whole, n, rate, latency)
    assert priced(all_reduce_s, whole, n, rate, latency) <= halves * (1 + 1e-12)


@run
@given(formulas, byte_counts, members, s_per_byte, s_per_byte, latencies)
def test_more_bandwidth_is_never_slower(
    formula: object, whole: float, n: int, a: float, b: float, latency: float
) -> None:
    fast, slow = sorted((a, b))
    later = priced(formula, whole, n, slow, latency)
    assert priced(formula, whole, n, fast, latency) <= later * (1 + 1e-12)


@run
@given(formulas, byte_counts, byte_counts, members, s_per_byte, latencies)
def test_more_bytes_are_never_faster(
    formula: object, a: float, b: float, n: int, rate: float, latency: float
) -> None:
    little, much = sorted((a, b))
    later = priced(formula, much, n, rate, latency)
    assert priced(formula, little, n, rate, latency) <= later * (1 + 1e-12)


def test_ring_of_four_by_hand() -> None:
    """8 GB over four members at 4 GB/s and 1 ms a step.

    All-gather: 3 steps of 2 GB: 3 x (0.5 s + 1 ms) = 1.503 s. All-reduce: 6 such
    steps, 3.006 s; the tree would move 2 x 8 GB, 4 s.
    """
    gather = priced(all_gather_s, 8e9, 4, 1 / 4e9, 1e-3)
    assert gather == pytest.approx(1.503, rel=1e-12)
    both = priced(all_reduce_s, 8e9, 4, 1 / 4e9, 1e-3)
    assert both == pytest.approx(3.006, rel=1e-12)


def test_tree_wins_for_small_messages_among_many() -> None:
    """8 bytes over 1,024 members at 10 us a step: 2 log2(1024) = 20 steps, 200 us.

    A ring takes 2 x 1,023 steps, 20.46 ms (Jeaugey 2019, 'Massively scale your deep
    learning training with NCCL 2.4').
    """
    took = priced(all_reduce_s, 8, 1024, 1e-12, 1e-5)
    assert took == pytest.approx(200e-6, rel=1e-6)
    halves = 2 * priced(all_gather_s, 8, 1024, 1e-12, 1e-5)
    assert halves == pytest.approx(20.46e-3, rel=1e-6)


def test_send_is_one_hop() -> None:
    """1 GB at 12.5 GB/s is 80 ms, and 5 us to get going."""
    one = send_s(np.array([1e9]), np.array([1 / 12.5e9]), np.array([5e-6]))
    assert one[0] == pytest.approx(80.005e-3, rel=1e-12)


@run
@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1))
def test_hidden_traffic_is_within_compute_and_its_share(
    traffic_s: float, compute_s: float, overlap: float
) -> None:
    hidden = hidden_s(np.array([traffic_s]), np.array([compute_s]), overlap)[0]
    # It hides all that it may: one of the two limits is reached.
    assert hidden == min(compute_s, overlap * traffic_s)


@run
@given(*[st.floats(0, 1e3)] * 3, st.floats(0, 1))
def test_traffic_in_turn_hides_each_second_once(
    first_s: float, second_s: float, compute_s: float, overlap: float
) -> None:
    first, second, compute = (np.array([s]) for s in (first_s, second_s, compute_s))
    one, other, left = exposed_in_turn_s(first, second, compute, overlap)
    hidden = first_s + second_s - one[0] - other[0]
    assert hidden == pytest.approx(min(compute_s, overlap * (first_s + second_s)))
    assert left[0] == pytest.approx(compute_s - hidden, abs=1e-9)
