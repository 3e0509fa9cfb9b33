"""What is asked about more hardware and other training, before it is solved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import meshwright as mw
from meshwright.explanations.marginal_values import (
    marginal_values,
    rule_prices,
    worth_other_plans,
)
from meshwright.results.explanation import Change
from meshwright.spec.spec import Spec

SPEC: dict[str, Any] = {
    "model": "gpt-1.3b",
    "cluster": {"topology": "dgx-h100", "count": 2},
    "training": {"seq_len": 1024, "global_batch": 64},
}


def asked(**sections: Any) -> tuple[Spec, dict[str, Spec], list[Change]]:
    """Return a spec, the changed ones by the change, and what is told of them."""
    spec, changed = mw.load({**SPEC, **sections}, mw.Spec), list[Spec]()

    def solve(other: Spec, _prepared: object) -> Any:
        changed.append(other)
        best = SimpleNamespace(step_s=len(changed), tokens_per_s_per_gpu=1.0)
        return SimpleNamespace(best=best, status="optimal")

    told = list(marginal_values(spec, None, solve, ()))
    assert [change.step_s for change in told] == [*range(1, len(changed) + 1)]
    by_change = zip((one.change for one in told), changed, strict=True)
    return spec, dict(by_change), told


def test_each_change_raises_one_thing() -> None:
    spec, changed, told = asked()
    assert all(change.is_proven for change in told)
    levels, scale_out = spec.cluster.topology.levels, spec.cluster.topology.scale_out
    assert scale_out is not None
    names = [level.name for level in levels]
    assert [*changed] == [
        "memory +10 %",
        *(f"{name} +10 %" for name in [*names, scale_out.name]),
        "one machine more",
        "sequence x 2",
        "batch x 2",
    ]
    more = changed["memory +10 %"]
    assert more.usable_gib == pytest.approx(1.1 * spec.usable_gib)
    assert more.cluster.topology.levels == levels
    for index, name in enumerate(names):
        wider = changed[f"{name} +10 %"].cluster.topology
        assert wider.levels[index].gb_s == pytest.approx(1.1 * levels[index].gb_s)
        assert wider.scale_out == scale_out
    wider = changed[f"{scale_out.name} +10 %"].cluster.topology
    assert wider.scale_out is not None
    assert wider.scale_out.gb_s == pytest.approx(1.1 * scale_out.gb_s)
    assert wider.levels == levels
    assert changed["one machine more"].cluster.count == 3
    assert changed["sequence x 2"].training.seq_len == 2048
    assert changed["batch x 2"].training.global_batch == 128


def test_links_that_one_machine_does_not_use_are_not_widened() -> None:
    spec, changed, _ = asked(cluster={"topology": "dgx-h100"})
    assert spec.cluster.topology.scale_out is not None
    assert f"{spec.cluster.topology.scale_out.name} +10 %" not in changed
    assert changed["one machine more"].cluster.count == 2


def test_links_of_a_graph_are_widened_by_their_bandwidth() -> None:
    training = {**SPEC["training"], "precision": "fp16"}
    spec, changed, _ = asked(cluster={"topology": "dgx-1v"}, training=training)
    before = [link.gb_s for link in spec.cluster.topology.links]
    assert len({*before}) > 1
    for gb_s in {*before}:
        wider = changed[f"links of {gb_s:g} GB/s +10 %"].cluster.topology.links
        expected = [1.1 * one if one == gb_s else one for one in before]
        assert [link.gb_s for link in wider] == pytest.approx(expected)


@pytest.mark.parametrize(("known", "is_asked"), [(2047, False), (2048, True)])
def test_no_sequence_is_longer_than_learned_positions(
    known: int, is_asked: bool
) -> None:
    model = {"preset": "gpt-1.3b", "learned_positions": known}
    _, changed, _ = asked(model=model)
    assert ("sequence x 2" in changed) == is_asked


def lever(switch: str) -> Any:
    return SimpleNamespace(switch=switch)


def plan_that(*, pays: bool) -> Any:
    return SimpleNamespace(pays_for_memory=pays)


def test_other_plans_are_looked_for_with_three_levers_of_memory() -> None:
    of_memory = ["loss_chunks", "optimizer", "master_weights", "moments"]
    levers = [lever("overlap.tp"), *map(lever, of_memory)]
    pays, keeps = plan_that(pays=True), plan_that(pays=False)
    assert [one.switch for one in worth_other_plans(levers, pays)] == of_memory[:3]
    assert [*worth_other_plans(levers, keeps)] == []


def test_prices_are_told_of_the_users_rules_alone() -> None:
    best = SimpleNamespace(step_s=2.0, tokens_per_s_per_gpu=1.0)
    found = SimpleNamespace(best=best, status="optimal")
    none = SimpleNamespace(best=None, status="infeasible")
    freed: Any = [
        (SimpleNamespace(rule="pins.tp"), found),
        (SimpleNamespace(rule="rules.even"), found),
        (SimpleNamespace(rule="rules.wide"), none),
    ]
    (told,) = rule_prices(freed)
    assert (told.change, told.step_s) == ("without rules.even", 2.0)
