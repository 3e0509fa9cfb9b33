"""Where ranks sit on hosts whose GPUs are not alike, against every order there is.

The gate draws fewer random specs and orders than `--all`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwright.check.check import broken_rules, check
from meshwright.cost.job import make_job
from meshwright.cpsat import order_model
from meshwright.cpsat.group_cost import GroupCost
from meshwright.cpsat.order_model import pareto_orders
from meshwright.planner.degrees import enumerate_meshes, price_placed
from meshwright.planner.options import Options
from meshwright.planner.placer import GroupTraffic, Placer, group_costs, traffic_of
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.cluster import Cluster
from meshwright.spec.spec import Spec
from meshwright.topology.graph import rank_order_pairs
from meshwright.topology.groups import least_group_prices, price_groups
from meshwright.topology.routed_fabric import (
    HostKind,
    RoutedFabric,
    build_fabric,
    hops_of,
)
from tests.helpers.extent import gate
from tests.helpers.irregular import (
    in_pairs,
    irregular_specs,
    islands,
    loaded,
    machine,
    machines,
    on_sockets,
    renamed,
    small_spec,
)
from tests.helpers.oracle import brute_force

Ints = NDArray[np.int64]

RANDOM = settings(
    max_examples=gate(6, everything=20), suppress_health_check=list(HealthCheck)
)

CUBE = {"machine": "dgx-1v"}
FP16 = {"seq_len": 2048, "global_batch": 32, "precision": "fp16"}


def kind_of(cluster: Cluster) -> HostKind:
    fabric = build_fabric(cluster)
    assert isinstance(fabric, RoutedFabric)
    return fabric.kinds[0]


@cache
def cube() -> HostKind:
    return kind_of(loaded(CUBE, training=FP16).cluster)


def kind_of_machine(topology: dict[str, Any]) -> HostKind:
    return kind_of(Cluster.model_validate({"topology": topology}))


def group_costs_of(
    kind: HostKind, shape: Sequence[int], is_exchange: bool
) -> list[GroupCost]:
    """Return what the groups of each axis of one level cost, at no limit."""
    mesh, loads = np.array(shape)[:, None], kind.tables[0] * 1e18
    waits = np.rint(kind.tables[1] * 1e9).astype(np.int64)
    whole = np.rint(loads).astype(np.int64)
    groups = []
    for axis in range(len(shape)):
        hops = tuple(hops_of(mesh, axis, is_exchange))
        base = np.arange(whole.shape[2]) * 1_000_000
        most = (len(hops) * int(whole.max()) + int(base.max()), int(waits.max()))
        groups.append(GroupCost(hops, whole, base, waits, most))
    return groups


def every_cost(groups: Sequence[GroupCost], orders: Ints) -> Ints:
    """Return loads and latencies of orders, added up hop by hop, (orders, costs)."""
    columns = []
    for group in groups:
        loads, longest = group.base[None].repeat(len(orders), axis=0), 0 * orders[:, 0]
        for a, b in group.hops:
            loads = loads + group.loads[orders[:, a], orders[:, b]]
            longest = np.maximum(longest, group.latency[orders[:, a], orders[:, b]])
        columns += [loads.max(axis=1), longest]
    return np.stack(columns, axis=1)


def front_of(costs: Ints) -> set[tuple[int, ...]]:
    """Return the costs that no other ones better."""
    distinct = np.unique(costs, axis=0)
    return {
        tuple(one.tolist())
        for one in distinct
        if not ((distinct <= one).all(axis=1) & (distinct < one).any(axis=1)).any()
    }


def found(
    groups: Sequence[GroupCost], pairs: Sequence[tuple[int, int]]
) -> set[tuple[int, ...]]:
    answer = pareto_orders(groups, pairs)
    assert answer.is_all
    return front_of(every_cost(groups, np.array(answer.orders)))


def pairs_of(kind: HostKind) -> list[tuple[int, int]]:
    return rank_order_pairs(kind.routes.graph, kind.routes.gpus, kind.way_out)


def permutations(gpus: int) -> Ints:
    return np.array(list(itertools.permutations(range(gpus))))


def shapes(gpus: int) -> list[tuple[int, ...]]:
    """Return one axis, or two of which neither is idle."""
    pairs = [(n, gpus // n) for n in range(2, gpus) if gpus % n == 0]
    return [(gpus,), *pairs]


@pytest.mark.slow
@RANDOM
@given(machines(4, 6), st.booleans(), st.booleans(), st.data())
def test_orders_are_those_of_brute_force(
    topology: dict[str, Any], is_exchange: bool, is_listed: bool, data: st.DataObject
) -> None:
    """Every point of the front, by lists and by CP-SAT, symmetries broken or not."""
    kind = kind_of_machine(topology)
    gpus = len(kind.routes.gpus)
    groups = group_costs_of(kind, data.draw(st.sampled_from(shapes(gpus))), is_exchange)
    expected = front_of(every_cost(groups, permutations(gpus)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_model, "MOST_LISTED", 10_000 if is_listed else 0)
        assert found(groups, []) == expected
        assert found(groups, pairs_of(kind)) == expected


@pytest.mark.parametrize("shape", [(8,), (4, 2), (2, 4), (2, 2, 2)])
def test_cube_mesh_has_the_orders_of_brute_force(shape: tuple[int, ...]) -> None:
    groups = group_costs_of(cube(), shape, is_exchange=False)
    expected = front_of(every_cost(groups, permutations(8)))
    assert found(groups, pairs_of(cube())) == expected


def test_rings_in_rings_cannot_be_turned_by_one() -> None:
    """Rings of two inside one ring of four: ranks 0 and 1 are not alike.

    GPU 0 has 25 GB/s to GPUs 1 and 2 and 50 GB/s to GPU 3, which nobody else has. The
    ring 0-1-2-3 with the pairs (0, 1) and (2, 3) turned by one has other pairs.
    """
    kind = kind_of_machine(in_pairs([(0, 3)]))
    whole = group_costs_of(kind, (4,), is_exchange=False)
    pairs = group_costs_of(kind, (2, 2), is_exchange=False)[:1]
    groups = [*pairs, *whole]
    expected = front_of(every_cost(groups, permutations(4)))
    assert found(groups, []) == expected


def test_orders_above_a_limit_are_left_out() -> None:
    """With a limit at the least load of the whole ring only that is left."""
    groups = group_costs_of(cube(), (8,), is_exchange=False)
    costs = every_cost(groups, permutations(8))
    least = int(costs[:, 0].min())
    limited = [
        GroupCost(g.hops, g.loads, g.base, g.latency, (least, 10**9)) for g in groups
    ]
    answer = pareto_orders(limited, [])
    loads = every_cost(groups, np.array(answer.orders))[:, 0]
    assert answer.is_all
    assert loads.tolist() == [least]


def test_without_a_limit_no_order_costs_more_than_is_allowed() -> None:
    """Traffic that leaves the host counts too, beside that of every hop."""
    kind = kind_of(loaded({**CUBE, "count": 2}, training=FP16).cluster)
    chooser = np.random.default_rng(0)
    traffic = (GroupTraffic(0, ((0, 1),), 0.001, 1.0, wait_share=1.0),)
    (group,) = group_costs(kind, traffic, ((inf, inf),))
    orders = np.stack([chooser.permutation(8) for _ in range(50)])
    loads, waits = every_cost([group], orders).max(axis=0)
    assert group.base.max() > 0
    assert (loads <= group.most[0], waits <= group.most[1]) == (True, True)


def test_rounding_leaves_out_no_order_that_is_just_within_a_limit() -> None:
    """Every hop is rounded, and an order of eight hops has the sum of eight."""
    kind, chooser = cube(), np.random.default_rng(0)
    hops = tuple(hops_of(np.array([[8]]), 0, is_exchange=False))
    traffic = (GroupTraffic(0, hops, 0.123, 0.045, wait_share=0.5),)
    orders = np.stack([chooser.permutation(8) for _ in range(50)])
    loads_s, waits_s = kind.tables[0] * 0.123, kind.tables[1]
    for order, (load, wait) in zip(
        orders,
        every_cost(group_costs(kind, traffic, ((inf, inf),)), orders),
        strict=True,
    ):
        on_hops = [(order[a], order[b]) for a, b in hops]
        load_s = (sum(loads_s[hop] for hop in on_hops) + kind.exits * 0.045).max()
        wait_s = 0.5 * max(waits_s[hop] for hop in on_hops)
        (limited,) = group_costs(kind, traffic, ((load_s, wait_s),))
        assert load <= limited.most[0] <= load * (1 + 1e-6) + 2 * len(hops) + 1
        assert wait <= limited.most[1] <= wait + 1


def ring_gb_s(kind: HostKind, order: Sequence[int]) -> list[float]:
    """Return the rates of the links that join neighbours, 0 where none does."""
    names = [kind.routes.gpus[gpu] for gpu in order]
    return [
        kind.routes.graph.edges[hop]["gb_s"] if kind.routes.graph.has_edge(*hop) else 0
        for hop in zip(names, [*names[1:], names[0]], strict=True)
    ]


def test_ring_of_eight_takes_double_links_throughout() -> None:
    """The cube mesh has a ring of double NVLinks, 50 GB/s; as listed it has not.

    0-1 is a single link and 3-4 is none (topologies/machines/dgx-1v.yaml).
    """
    spec = loaded(CUBE, training=FP16, pins={"tp": 8})
    plan = best_of(solve(spec)).plan
    assert ring_gb_s(cube(), plan.seats[0]) == [50.0] * 8
    as_listed = ring_gb_s(cube(), range(8))
    assert as_listed[0] == 25.0
    assert as_listed[3] == 0.0


FAR_SOCKETS = machine(
    4,
    ["cpu0", "cpu1"],
    [
        *((f"gpu{gpu}", f"cpu{gpu % 2}", 12.5, 2.0) for gpu in range(4)),
        ("cpu0", "cpu1", 10.0, 60.0),
        *((f"nic{socket}", f"cpu{socket}", 25.0, 1.0) for socket in range(2)),
    ],
    ["nic0", "nic1"],
) | {"scale_out": {"name": "net", "gb_s": 25.0, "latency_us": 1.0, "uplink": "per_nic"}}
"""Other hosts are nearer than the other socket."""


@pytest.mark.parametrize("degrees", [(8, 1, 1, 1, 1), (2, 1, 4, 1, 1), (1, 8, 1, 1, 1)])
def test_no_order_costs_a_group_less_than_its_least(degrees: tuple[int, ...]) -> None:
    """A ring over hosts waits inside them on some of its hops alone."""
    fabric = build_fabric(loaded({"topology": FAR_SOCKETS, "count": 2}).cluster)
    assert isinstance(fabric, RoutedFabric)
    for mesh in enumerate_meshes(fabric.sizes, np.array(degrees), len(fabric.sizes)):
        traffic = traffic_of(fabric, mesh[None], None)
        floor = least_group_prices(fabric, mesh[None])
        least = Placer(fabric)._raised(traffic, floor)
        for order in itertools.permutations(range(4)):
            paths = price_groups(fabric.placed((order,)), mesh[None])
            assert (least.latency_s <= paths.latency_s * (1 + 1e-9)).all()
            assert (least.s_per_byte <= paths.s_per_byte * (1 + 1e-9)).all()


def test_orders_are_priced_with_the_experts_of_their_plan() -> None:
    fabric = build_fabric(loaded(CUBE, training=FP16).cluster)
    meshes = np.stack(
        list(enumerate_meshes(fabric.sizes, np.array((1, 1, 8, 1, 1)), 1))
    )
    ep = np.full(len(meshes), 4)
    order = ((0, 2, 4, 6, 1, 3, 5, 7),)
    told = price_placed(fabric, meshes, [order] * len(meshes), ep)
    placed = fabric.placed(order)
    for experts, is_same in ((ep, True), (None, False)):
        paths = price_groups(placed, meshes, experts)
        assert np.array_equal(told.s_per_byte, paths.s_per_byte) is is_same


def test_symmetries_are_found_whatever_the_names_hash_to() -> None:
    """Eight GPUs on one switch with a rail each: all 28 pairs; one slow: 7 x 6 / 2."""
    slow = {"host": 1, "link": ["gpu3", "nvlink0"], "gb_s": 150}
    cluster = {"topology": "dgx-a100", "count": 2, "overrides": [slow]}
    fabric = build_fabric(loaded(cluster).cluster)
    assert isinstance(fabric, RoutedFabric)
    plain, other = fabric.kinds
    assert len(pairs_of(plain)) == 8 * 7 // 2
    assert len(pairs_of(other)) == 7 * 6 // 2


def best_of(outcome: Outcome) -> PricedPlan:
    assert outcome.best is not None
    return outcome.best


@pytest.mark.slow
@RANDOM
@given(irregular_specs())
def test_plans_are_those_of_brute_force(spec: Spec) -> None:
    """Every order of GPUs times every plan; a limit on links may leave it open."""
    outcome, best = solve(spec), brute_force(spec)
    is_limited = spec.limits.max_link_utilisation is not None
    if math.isinf(best.step_s):
        assert outcome.status == "infeasible" or is_limited
        assert outcome.best is None
        return
    if outcome.best is None:
        assert is_limited
        assert outcome.status == "unknown"
        return
    assert outcome.certificate is not None
    within = 2 * outcome.certificate.rounding_s
    assert outcome.certificate.bound_s <= best.step_s + within
    if outcome.status == "optimal":
        assert outcome.best.step_s == pytest.approx(best.step_s, rel=0, abs=within)
    assert outcome.status == "optimal" or is_limited
    assert outcome.best.step_s >= best.step_s - within
    assert broken_rules(make_job(spec), outcome.best.plan) == []
    assert_no_less_is_proven_than_without_a_limit(spec, outcome)


def assert_no_less_is_proven_than_without_a_limit(spec: Spec, outcome: Outcome) -> None:
    """What no plan takes less than without a limit, none does with it.

    The best plan without it that keeps it is the best one.
    """
    limits = spec.limits.model_copy(update={"max_link_utilisation": None})
    free = solve(spec.model_copy(update={"limits": limits}))
    assert free.certificate is not None
    assert outcome.certificate is not None
    assert outcome.certificate.bound_s >= free.certificate.bound_s
    share = spec.limits.max_link_utilisation or 1.0
    if best_of(free).link_utilisation <= share:
        assert outcome.status == "optimal"
    assert bool(outcome.certificate.left_open) == (outcome.status == "feasible")


@pytest.mark.parametrize(("share", "is_kept"), [(0.2, True), (0.06, False)])
def test_a_limit_that_the_fastest_plan_keeps_changes_nothing(
    share: float, is_kept: bool
) -> None:
    """Eight V100 without a limit: no link is busy for more than 6.3 % of the step."""
    pins = {"pp": 1, "cp": 1}
    limited = loaded(
        CUBE, training=FP16, pins=pins, limits={"max_link_utilisation": share}
    )
    free, result = solve(loaded(CUBE, training=FP16, pins=pins)), solve(limited)
    assert free.certificate is not None
    assert result.certificate is not None
    assert result.certificate.bound_s >= free.certificate.bound_s
    assert (result.status == "optimal") == is_kept
    assert (best_of(result).plan == best_of(free).plan) == is_kept
    assert result.certificate.left_open.startswith(
        "" if is_kept else "Not proven: some placements"
    )


@pytest.mark.slow
@pytest.mark.parametrize("pins", [{}, {"tp": 2}, {"tp": 4}, {"cp": 2, "dp_shard": 2}])
def test_pairs_in_a_bad_order(pins: dict[str, int]) -> None:
    usual = {"schedule": "1f1b", "vpp": 1, "recompute": "none", "dp_replicate": 1}
    spec = Spec.model_validate(
        small_spec(in_pairs([(0, 2), (1, 3)]), pins=usual | pins)
    )
    best = brute_force(spec)
    outcome = solve(spec)
    assert outcome.status == "optimal"
    assert best_of(outcome).step_s == pytest.approx(best.step_s, abs=2e-9, rel=1e-7)
    if pins == {"tp": 2}:
        groups = [set(best_of(outcome).plan.seats[0][at : at + 2]) for at in (0, 2)]
        assert groups in ([{0, 2}, {1, 3}], [{1, 3}, {0, 2}])


def dead_link_cube() -> dict[str, Any]:
    return CUBE | {"overrides": [{"link": ["gpu0", "gpu4"]}]}


LARGER: dict[str, dict[str, Any]] = {
    "islands": {"topology": islands([range(0, 8, 2), range(1, 8, 2)])},
    "uneven": {"topology": on_sockets({0: 0, 1: 1, 2: 0, 3: 0, 4: 1, 5: 0})},
    "interleaved": {"topology": on_sockets({gpu: gpu % 2 for gpu in range(8)}, 15.5)},
    "dead": dead_link_cube(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
@pytest.mark.parametrize("pins", [{}, {"tp": 2}, {"pp": 2, "dp_shard": {"min": 2}}])
def test_no_other_order_is_faster(name: str, pins: dict[str, Any]) -> None:
    training = FP16 | {"precision": "fp16" if name == "dead" else "bf16"}
    training["global_batch"] = 24
    spec = loaded(LARGER[name], training=training, pins=pins)
    job, outcome = make_job(spec), solve(spec)
    best = best_of(outcome)
    assert outcome.status == "optimal"
    assert check(job, best.plan).step_s == best.step_s
    chooser = random.Random(0)
    orders = [
        chooser.sample(range(spec.cluster.gpus), spec.cluster.gpus)
        for _ in range(gate(50, everything=200))
    ]
    others = [
        check(job, best.plan.model_copy(update={"seats": (tuple(order),)})).step_s
        for order in orders
    ]
    assert min(others) >= best.step_s - 2e-9
    assert max(others) > best.step_s


@pytest.mark.slow
@settings(max_examples=gate(3, everything=8))
@given(st.permutations(range(8)))
def test_names_of_gpus_change_no_time(order: list[int]) -> None:
    topology = islands([range(4), range(4, 8)])
    names = {node["name"]: node["name"] for node in topology["nodes"]}
    names |= {f"gpu{i}": f"gpu{one}" for i, one in enumerate(order)}
    pins = {"tp": 2}
    first = solve(Spec.model_validate(small_spec(topology, pins=pins)))
    second = solve(Spec.model_validate(small_spec(renamed(topology, names), pins=pins)))
    assert best_of(second).step_s == pytest.approx(best_of(first).step_s, rel=1e-12)


def test_workers_and_seeds_change_nothing() -> None:
    topology = on_sockets({0: 0, 1: 1, 2: 0, 3: 0, 4: 1, 5: 0})
    spec = Spec.model_validate(small_spec(topology))
    answers = [
        best_of(solve(spec, Options(workers=workers, seed=seed)))
        for workers, seed in ((1, 0), (2, 0), (1, 7))
    ]
    assert answers[0] == answers[1] == answers[2]


def test_a_skeleton_counts_once_however_its_ranks_sit() -> None:
    """Of few skeletons in many orders of GPUs more were once left than there are."""
    links = [
        ("gpu0", "cpu", 12.5, 1.0),
        ("gpu1", "cpu", 6.0, 1.0),
        ("gpu2", "cpu", 6.0, 0.0),
        ("gpu3", "cpu", 12.5, 1.0),
        ("gpu0", "gpu1", 50.0, 1.0),
        ("gpu0", "gpu3", 25.0, 1.0),
        ("gpu2", "gpu3", 25.0, 0.0),
    ]
    pins = {"cp": 2, "dp_shard": 2, "vpp": 1, "recompute": "none"}
    result = small_spec(machine(4, ["cpu"], links), framework="torchtitan", pins=pins)
    result["model"] |= {"n_layers": 3, "d_ff": 3072}
    result["training"] = {"seq_len": 480, "global_batch": 4}
    result["limits"] = {"tp_min_link_gb_s": 5.0}
    certificate = solve(Spec.model_validate(result)).certificate
    assert certificate is not None
    counts = certificate.counts
    assert counts.bounded >= 0
    assert 0 < counts.survivors <= counts.skeletons
