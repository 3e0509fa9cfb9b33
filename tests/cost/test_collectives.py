"""Collectives: their formulas, and what was measured of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.cost.hiding import exposed_send_s
from meshwright.cost.job import make_job
from meshwright.cost.traffic import (
    SLOWS_COMPUTE,
    all_gather_s,
    all_reduce_s,
    exposed_in_turn_s,
    hidden_s,
    reduce_scatter_s,
    send_s,
)
from meshwright.plans.columns import Floats
from meshwright.spec.topology import USUAL_BUS_SHARE
from meshwright.topology.routed_fabric import build_fabric
from tests.helpers.irregular import loaded
from tests.helpers.rows import row

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
def test_traffic_in_turn_hides_each_second_once_and_collectives_slow_compute(
    first_s: float, second_s: float, compute_s: float, overlap: float
) -> None:
    first, second, compute = (np.array([s]) for s in (first_s, second_s, compute_s))
    one, other, left = exposed_in_turn_s(first, second, compute, overlap)
    hidden_first = (first_s - one[0]) / (1 - SLOWS_COMPUTE)
    hidden = hidden_first + second_s - other[0]
    assert hidden_first == pytest.approx(min(compute_s, overlap * first_s))
    assert hidden == pytest.approx(min(compute_s, overlap * (first_s + second_s)))
    assert left[0] == pytest.approx(compute_s - hidden, abs=1e-9)


MIB = 2**20


class Timed(NamedTuple):
    """A collective over all GPUs of some machines, as it was measured."""

    machine: str
    machines: int
    seconds: Callable[..., Floats]
    us_by_mib: dict[int, float]
    off: float
    """Largest ratio of the predicted time and the measured one, either way."""


TIMED = {
    # GoogleCloudPlatform/cluster-toolkit, example READMEs
    "TCPXO": Timed(
        "a3-megagpu-8g", 2, all_gather_s,
        {16: 197.88, 64: 517.87, 256: 1_510.98, 1_024: 5_531.01, 8_192: 42_668.7}, 1.7,
    ),
    # dstackai/dstack, cluster examples
    "TCPX": Timed(
        "a3-highgpu-8g", 2, all_gather_s,
        {8: 784.9, 64: 1_432.6, 128: 2_516.9, 1_024: 20_431.0, 8_192: 160_505.0}, 1.8,
    ),
    # GoogleCloudPlatform/cluster-toolkit, example READMEs
    "RoCE": Timed(
        "a3-ultragpu-8g", 2, all_gather_s,
        {1: 79.74, 16: 122.9, 64: 294.7, 256: 877.5, 1_024: 3_105.7, 8_192: 24_489.0},
        1.8,
    ),
    # coreweave/nccl-tests, README; the bundled machine has the usual share
    "InfiniBand": Timed(
        "dgx-h100", 8, all_reduce_s,
        {512: 2_984.6, 1_024: 5_808.0, 2_048: 11_163.0, 8_192: 43_980.0}, 1.3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMED)
def test_collectives_take_what_was_measured(name: str) -> None:
    found = TIMED[name]
    cluster = loaded({"topology": found.machine, "count": found.machines}).cluster
    fabric = build_fabric(cluster)
    mesh = np.array([[[8, found.machines]]])
    s_per_byte = fabric.loads(mesh)[0].max(axis=1) / USUAL_BUS_SHARE
    step_s, members = fabric.latency_s(mesh)[0], np.array([8 * found.machines])
    ratios = {
        size: float(
            found.seconds(np.array([size * MIB]), members, s_per_byte, step_s)[0]
        )
        / (measured_us * 1e-6)
        for size, measured_us in found.us_by_mib.items()
    }
    assert all(1 / found.off < ratio < found.off for ratio in ratios.values()), ratios
    # Large messages tell the share of the link alone.
    largest = ratios[max(ratios)]
    assert largest == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize(
    ("send", "chunk", "exposed"), [(1.0, 0.5, 0.75), (1.0, 0.0, 1.0), (1.0, 9.0, 0.0)]
)
def test_half_of_a_chunk_hides_each_of_its_two_sends(
    send: float, chunk: float, exposed: float
) -> None:
    """As much as overlaps at all; stages that are not interleaved wait for a send."""
    job = make_job(mw.load("llama3-70b-128xa100", mw.Spec))
    most = job.efficiency.gather_overlap
    for vpp, told in {1: send, 2: max(exposed, 1 - most)}.items():
        columns = row(pp=4, vpp=vpp), np.array([send]), np.array([chunk])
        assert exposed_send_s(job, *columns) == pytest.approx([told])
