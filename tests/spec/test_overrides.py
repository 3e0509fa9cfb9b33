"""What is broken in a cluster: hosts left out, links down or slow, and bad input.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.errors import SpecError
from meshwright.planner.solve import solve
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.cluster import Cluster
from meshwright.spec.spec import Spec
from meshwright.topology.routed_fabric import build_fabric
from tests.helpers.extent import gate
from tests.helpers.irregular import GPU, loaded, small_spec

A100 = {"topology": "dgx-a100", "count": 2}


def best_of(cluster: dict[str, Any], **fields: Any) -> PricedPlan:
    outcome = solve(loaded(cluster, **fields))
    assert outcome.status == "optimal"
    assert outcome.best is not None
    return outcome.best


def cluster_of(count: int, *overrides: dict[str, Any]) -> Cluster:
    found = {"topology": "dgx-a100", "count": count, "overrides": list(overrides)}
    return loaded(found).cluster


NOTHING = [
    {"host": 0, "link": ["gpu0", "nvlink0"], "gb_s": 300},
    {"link": ["gpu5", "nvlink0"], "gb_s": 300},
    {"host": 1, "link": ["gpu3", "nic3"], "gb_s": "200 Gbit/s"},
]


@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("pins", [{}, {"tp": 8}, {"pp": 2}, {"tp": 2, "cp": 2}])
def test_an_override_of_nothing_changes_nothing(
    nothing: dict[str, Any], pins: dict[str, int]
) -> None:
    plain = best_of(A100, pins=pins)
    same = best_of(A100 | {"overrides": [nothing]}, pins=pins)
    assert same.step_s == pytest.approx(plain.step_s, rel=1e-9)
    assert same.plan.seats == ()


trees = st.tuples(
    st.sampled_from([2, 4]), st.integers(2, 3), st.floats(20, 300), st.floats(1, 2)
)


def levels(gpus: int, gb_s: float, slower: float) -> dict[str, Any]:
    """Return hosts of one switch whose rails are narrower than what is inside."""
    inner = {"name": "nvlink", "size": gpus, "gb_s": gb_s, "latency_us": 1.5}
    outer = {"name": "leaf", "gb_s": gb_s / slower / gpus, "latency_us": 2.5}
    return {"gpu": GPU, "levels": [inner], "scale_out": outer}


def step_s(cluster: dict[str, Any]) -> float:
    spec = small_spec({}, training={"seq_len": 1024, "global_batch": 24})
    outcome = solve(Spec.model_validate(spec | {"cluster": cluster}))
    assert outcome.best is not None
    assert outcome.status == "optimal"
    return outcome.best.step_s


@settings(max_examples=gate(2, everything=6))
@given(trees)
def test_any_tree_is_the_same_with_an_override_of_nothing(
    tree: tuple[int, int, float, float],
) -> None:
    gpus, hosts, gb_s, slower = tree
    found = {"topology": levels(gpus, gb_s, slower), "count": hosts}
    nothing = {"host": 0, "link": ["gpu0", "nvlink0"], "gb_s": gb_s}
    changed = found | {"overrides": [nothing]}
    assert step_s(changed) == pytest.approx(step_s(found), rel=1e-9)


@pytest.mark.slow
@settings(max_examples=gate(3, everything=8))
@given(trees, st.lists(st.floats(0.1, 0.99), min_size=2, max_size=2), st.booleans())
def test_slower_links_never_make_a_plan_faster(
    tree: tuple[int, int, float, float], shares: list[float], is_rail: bool
) -> None:
    gpus, hosts, gb_s, slower = tree
    found = {"topology": levels(gpus, gb_s, slower), "count": hosts}
    whole = gb_s / slower / gpus if is_rail else gb_s
    link = ["gpu1", "nic1" if is_rail else "nvlink0"]
    steps = [
        step_s(
            found | {"overrides": [{"host": 0, "link": link, "gb_s": whole * share}]}
        )
        for share in (1.0, max(shares), min(shares))
    ]
    # Times are proven to a nanosecond.
    assert steps[0] <= steps[1] + 2e-9
    assert steps[1] <= steps[2] + 2e-9


def test_a_dead_host_is_left_out() -> None:
    """64 hosts of 8, one down: 63 x 8 = 504 GPUs in two levels."""
    found = cluster_of(64, {"host": 17})
    assert found.hosts.left_out == (17,)
    assert found.fan_outs == (8, 63)
    assert found.gpus == 504


def test_a_dead_gpu_leaves_its_host_out_or_takes_one_from_all() -> None:
    """Of 64 hosts one with 7 GPUs: 63 x 8 beats 64 x 7. All with 7: 64 x 7 = 448."""
    one = cluster_of(64, {"host": 5, "node": "gpu2"})
    assert one.hosts.left_out == (5,)
    assert one.fan_outs == (8, 63)
    every = cluster_of(64, {"node": "gpu2"})
    assert every.hosts.left_out == ()
    assert every.fan_outs == (7, 64)
    assert every.gpus == 448


def test_most_gpus_count_where_hosts_lose_some() -> None:
    """2 hosts, one with 7 GPUs: 2 x 7 = 14 beats 1 x 8. The whole one has 7 in use."""
    found = cluster_of(2, {"host": 1, "node": "gpu0"})
    assert found.fan_outs == (7, 2)
    assert found.hosts.left_out == ()
    assert [kind.machine.gpus for kind in found.hosts.groups] == [7, 7]


def test_an_adapter_at_half_speed_halves_what_crosses_hosts() -> None:
    """tp 8 leaves a ring on each rail: the slow one, 12.5 of 25 GB/s, holds all up.

    The replicas' share of the step doubles but for latency; nothing else changes.
    """
    slow = {"host": 1, "link": ["gpu3", "nic3"], "gb_s": 12.5}
    fast_loads = build_fabric(cluster_of(2, NOTHING[0])).link_gb_s
    slow_loads = build_fabric(cluster_of(2, slow)).link_gb_s
    assert sorted(set(slow_loads) - set(fast_loads)) == [12.5]
    pins = {"tp": 8, "dp_replicate": 2, "schedule": "1f1b", "recompute": "none"}
    pins |= {"micro_batch": 1, "sequence_parallel": True}
    plain, held = (
        best_of(A100 | {"overrides": [one]}, pins=pins) for one in (NOTHING[0], slow)
    )
    ours = {load.phase: load.seconds for load in plain.links}
    theirs = {load.phase: load.seconds for load in held.links}
    assert theirs["dp_replicate"] == pytest.approx(2 * ours["dp_replicate"])
    assert theirs["tp"] == pytest.approx(ours["tp"])
    assert held.step_s > plain.step_s


def test_a_dead_nvlink_sends_rings_another_way() -> None:
    """gpu0 - gpu4 of the cube mesh is a double link of its fastest ring."""
    training = {"seq_len": 2048, "global_batch": 32, "precision": "fp16"}
    whole = best_of({"machine": "dgx-1v"}, training=training, pins={"tp": 8})
    dead = {"machine": "dgx-1v", "overrides": [{"link": ["gpu0", "gpu4"]}]}
    other = best_of(dead, training=training, pins={"tp": 8})
    assert other.step_s > whole.step_s
    seats = other.plan.seats[0]
    ring = {frozenset(hop) for hop in zip(seats, [*seats[1:], seats[0]], strict=True)}
    assert frozenset((0, 4)) not in ring


def test_a_link_between_hosts_and_switches_may_go_down_too() -> None:
    """Without its way out by NIC 0 a GPU of the cube mesh uses another adapter."""
    training = {"seq_len": 2048, "global_batch": 32, "precision": "fp16"}
    found = {
        "machine": "dgx-1v",
        "count": 2,
        "overrides": [{"host": 0, "node": "nic0"}],
    }
    cluster = loaded(found, training=training).cluster
    assert [kind.machine.nics for kind in cluster.hosts.groups] == [4, 3]
    assert cluster.gpus == 16


BAD: list[tuple[list[Any] | Any, str, str]] = [
    ([{"host": 2}], "cluster.overrides.0.host", "2 is no host; accepted: 0 to 1"),
    ([{"node": "gpu8"}], "cluster.overrides.0.node", "'gpu8' is not among the nodes"),
    (
        [{"link": ["gpu0", "gpu1"]}],
        "cluster.overrides.0.link",
        "are not joined by a link; accepted: gpu0-nvlink0",
    ),
    ([{"host": 0}, {"host": 1}], "cluster.overrides", "leave no host"),
    (
        [{"link": ["gpu0", "nvlink0"]}, {"link": ["gpu0", "nic0"]}],
        "cluster.overrides",
        "without a way to others",
    ),
    ([{"host": 0, "gb_s": 5}], "cluster.overrides.0.gb_s", "without a link"),
    (
        [{"link": ["gpu0", "nvlink0"], "node": "gpu1"}],
        "cluster.overrides.0.node",
        "accepted: one of them",
    ),
    ([{"gb_s": 0}], "cluster.overrides.0", "expected link, node or host"),
    ([{"link": ["gpu0"]}], "cluster.overrides.0.link", "the names of two nodes"),
    (
        [{"link": ["gpu0", "nvlink0"], "gb_s": -1}],
        "cluster.overrides.0.gb_s",
        "-1",
    ),
]


@pytest.mark.parametrize(("overrides", "field", "sentence"), BAD)
def test_bad_overrides_say_what_is_accepted(
    overrides: list[Any], field: str, sentence: str, tmp_path: Path
) -> None:
    data = small_spec({}) | {"cluster": A100 | {"overrides": overrides}}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(SpecError) as caught:
        mw.load(str(path), mw.Spec)
    said = str(caught.value)
    assert field in said
    assert sentence in said
    place = said.split(": ")[0]
    assert place.startswith(str(path))
    line = int(place.split(":")[-1])
    assert path.read_text().splitlines()[line - 1].strip() != ""
