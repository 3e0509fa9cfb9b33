"""All-to-alls of experts: which copies of tokens cross which links."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.spec.cluster import Cluster
from meshwright.topology.fabric import EVEN, TokenExchange, parts_with_experts
from meshwright.topology.routed_fabric import build_fabric
from tests.helpers.every_mesh import every_mesh

DEEPSEEK_V3 = TokenExchange(256, 8, 8, 4)


def test_a_token_of_deepseek_v3_goes_to_at_most_four_nodes() -> None:
    """Eight nodes of one group each: all four chosen groups, but for rare misses.

    All 8 experts of a token are outside one of its four groups of 32 with the chance
    C(96, 8) / C(128, 8) = 0.0927; 4 x (1 - 0.0927) = 3.63.
    """
    assert parts_with_experts(DEEPSEEK_V3, 8) == pytest.approx(3.63, abs=5e-3)
    unlimited = TokenExchange(256, 8)
    # Of 8 nodes one has none of 8 experts with the chance C(224, 8) / C(256, 8).
    assert parts_with_experts(unlimited, 8) == pytest.approx(5.29, abs=5e-3)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_expected_parts_are_those_of_every_choice(data: st.DataObject) -> None:
    experts = data.draw(st.sampled_from([4, 6, 8, 12]))
    divisors = [n for n in range(1, experts + 1) if experts % n == 0]
    groups = data.draw(st.sampled_from(divisors))
    chosen = data.draw(st.integers(1, groups))
    wide = experts // groups
    top_k = data.draw(st.integers(1, min(3, chosen * wide)))
    parts = data.draw(st.sampled_from(divisors))
    hits = [
        len({expert // (experts // parts) for expert in some})
        for picked in combinations(range(groups), chosen)
        for some in combinations(
            [group * wide + i for group in picked for i in range(wide)], top_k
        )
    ]
    routing = TokenExchange(experts, top_k, groups, chosen)
    assert parts_with_experts(routing, parts) == pytest.approx(np.mean(hits))


def pods(**more: Any) -> Cluster:
    """Return 4 nodes of 8 GPUs, 2 and 2 under leaf switches."""
    gpu = {"memory_gib": 80, "memory_gb_s": 2000, "peak_tflops": {"bf16": 300}}
    levels = [
        {"name": "nvlink", "size": 8, "gb_s": 400, "latency_us": 1},
        {"name": "leaf", "size": 2, "gb_s": 50, "latency_us": 2},
        {"name": "spine", "size": 2, "gb_s": 50, "latency_us": 2},
    ]
    return Cluster.model_validate({"topology": {"gpu": gpu, "levels": levels}, **more})


def test_one_crossing_for_each_node_by_hand() -> None:
    """ep 32 over 4 nodes: 8 copies, of which 6 leave the node one by one.

    Two of eight groups are on each node. One of them is among the four chosen with the
    chance 40/70, and has an expert of the token with 0.907; both are with 15/70, and
    nearly always have one. 4 x (0.518 + 0.214) = 2.93 nodes, of which three quarters
    are not the token's own.
    """
    fabric, mesh = build_fabric(pods()), np.array([[[8, 2, 2]]])
    one_by_one = fabric.exchange_loads(mesh, 0)[0, 1] * (8 * 31 / 32)
    assert one_by_one == pytest.approx(6 / 50e9)
    once = fabric.exchange_loads(mesh, 0, DEEPSEEK_V3)[0, 1] * (8 * 31 / 32)
    assert once == pytest.approx(2.93 * 0.75 / 50e9, rel=5e-3)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([(1, 1), (8, 4), (4, 2)]))
def test_graphs_price_dispatch_as_levels_do(
    number: int, groups: tuple[int, int]
) -> None:
    nothing = {"link": ["gpu0", "nvlink0"], "gb_s": 400}
    by_level, routed = build_fabric(pods()), build_fabric(pods(overrides=[nothing]))
    every = every_mesh((8, 2, 2))
    mesh = every[[number % len(every)]]
    for exchange in (EVEN, TokenExchange(256, 8, *groups)):
        for axis in range(mesh.shape[1]):
            found = by_level.exchange_loads(mesh, axis, exchange)
            other = routed.exchange_loads(mesh, axis, exchange)
            assert found.max() == pytest.approx(other.max(), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([(1, 1), (8, 4), (4, 2)]))
def test_no_mesh_is_cheaper_than_the_least(
    number: int, groups: tuple[int, int]
) -> None:
    exchange = TokenExchange(256, 8, *groups)
    fabric = build_fabric(pods(), (("ep", exchange),))
    every = every_mesh((8, 2, 2))
    mesh = every[[number % len(every)]]
    for axis, degree in enumerate(mesh[0].prod(axis=1)):
        least = fabric.least(np.array([degree])).s_per_byte[0, 0]
        assert least <= fabric.exchange_loads(mesh, axis, exchange).max() * (1 + 1e-9)
