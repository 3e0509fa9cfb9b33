"""Where ranks sit on hosts with too many orders to list, and what is known of those."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import benchmarks
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.check.check import check
from meshwright.cost.job import make_job
from meshwright.cpsat import order_model
from meshwright.cpsat.group_cost import local_optimum
from meshwright.planner.solve import solve
from meshwright.spec.spec import Spec
from tests.helpers.irregular import in_pairs, machines, on_sockets, small_spec
from tests.helpers.oracle import brute_force
from tests.placement.test_placement import (
    every_cost,
    group_costs_of,
    kind_of_machine,
    permutations,
    shapes,
)

RANDOM = settings(max_examples=30, suppress_health_check=list(HealthCheck))

IRREGULAR = Path(benchmarks.__file__).parent / "irregular"

APART = on_sockets({gpu: gpu % 2 for gpu in range(8)})
"""PCIe at 12.5 GB/s and 2 us, 10 GB/s and 1 us between sockets."""


@RANDOM
@given(machines(4, 6), st.booleans(), st.data())
def test_no_order_is_below_the_floor(
    topology: dict[str, Any], is_exchange: bool, data: st.DataObject
) -> None:
    kind = kind_of_machine(topology)
    gpus = len(kind.routes.gpus)
    shape = data.draw(st.sampled_from(shapes(gpus)))
    for group in group_costs_of(kind, shape, is_exchange):
        costs = every_cost([group], permutations(gpus))
        assert (costs >= group.lower_bound).all()


@pytest.mark.parametrize(
    ("shape", "gb_s", "wait_ns"),
    # A ring of all eight crosses between sockets; pairs and fours need not.
    [((8,), 10.0, 5000), ((4, 2), 12.5, 4000), ((2, 4), 12.5, 4000)],
)
def test_floor_knows_who_has_to_leave_a_socket(
    shape: tuple[int, ...], gb_s: float, wait_ns: int
) -> None:
    kind = kind_of_machine(APART)
    group = group_costs_of(kind, shape, is_exchange=False)[0]
    load, wait = np.array(group.lower_bound) - [int(group.base.max()), 0]
    assert load == pytest.approx(1e9 / gb_s, abs=int(group.base.max()))
    assert wait == wait_ns


def test_cuts_are_the_links_between_sockets_and_those_of_gpus() -> None:
    kind = kind_of_machine(APART)
    group = group_costs_of(kind, (8,), is_exchange=False)[0]
    between = {cut.side for cut in group.cuts if len(cut.side) == 4}
    assert between == {(0, 2, 4, 6), (1, 3, 5, 7)}
    alone = {cut.side for cut in group.cuts if len(cut.side) == 1}
    assert alone == {(gpu,) for gpu in range(8)}


def test_swaps_bring_pairs_below_one_socket() -> None:
    """Ranks 0 and 1 and so on: as listed every pair has one GPU on each socket."""
    kind = kind_of_machine(APART)
    group = group_costs_of(kind, (2, 4), is_exchange=False)[0]
    order = local_optimum([group], tuple(range(8)))
    assert sorted(order) == list(range(8))
    assert all((a - b) % 2 == 0 for a, b in zip(order[::2], order[1::2], strict=True))


def switch_of() -> list[str]:
    """Return the PCIe switch of each of sixteen GPUs."""
    text = (IRREGULAR / "a6000-16-scrambled.yaml").read_text(encoding="utf-8")
    ends = [link["between"] for link in yaml.safe_load(text)["links"]]
    above = {gpu: switch for gpu, switch in ends if switch.startswith("pcie")}
    return [above[f"gpu{gpu}"] for gpu in range(16)]


def with_swaps(order: Sequence[int], chooser: random.Random) -> tuple[int, ...]:
    """Return an order with a few GPUs exchanged."""
    result = list(order)
    for _ in range(chooser.randint(1, 4)):
        a, b = chooser.sample(range(len(result)), 2)
        result[a], result[b] = result[b], result[a]
    return tuple(result)


@pytest.mark.slow
def test_order_of_sixteen_is_proven() -> None:
    """Pairs below one switch, as there are eight; near and far orders are no faster."""
    spec = mw.load(str(IRREGULAR / "gpt-1.3b-16xa6000-tp2.yaml"), mw.Spec)
    outcome = solve(spec)
    assert outcome.status == "optimal"
    assert outcome.best is not None
    found, plan = outcome.best.plan.seats[0], outcome.best.plan
    switches = switch_of()
    pairs = zip(found[::2], found[1::2], strict=True)
    assert all(switches[a] == switches[b] for a, b in pairs)
    chooser, job = random.Random(0), make_job(spec)
    others = [with_swaps(found, chooser) for _ in range(100)]
    others += [tuple(chooser.sample(range(16), 16)) for _ in range(100)]
    times = [
        check(job, plan.model_copy(update={"seats": (order,)})).step_s
        for order in others
    ]
    assert min(times) >= outcome.best.step_s - 2e-9
    assert max(times) > outcome.best.step_s


@pytest.mark.slow
@pytest.mark.parametrize("pins", [{}, {"tp": 2}, {"tp": 4}])
def test_bound_holds_where_the_search_is_cut_short(pins: dict[str, int]) -> None:
    usual = {"schedule": "1f1b", "vpp": 1, "recompute": "none", "dp_replicate": 1}
    topology = in_pairs([(0, 2), (1, 3)])
    spec = Spec.model_validate(small_spec(topology, pins=usual | pins))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_model, "MOST_LISTED", 0)
        patch.setattr(order_model, "MOST_EFFORT", 0.0)
        outcome = solve(spec)
    assert outcome.best is not None
    assert outcome.certificate is not None
    best_s, within = brute_force(spec).step_s, 2 * outcome.certificate.rounding_s
    assert outcome.certificate.bound_s <= best_s + within
    assert outcome.best.step_s >= best_s - within
    assert outcome.status == "feasible" or not pins
