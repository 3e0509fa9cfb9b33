"""What is asked about more hardware and other training, before it is solved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import meshwright as mw
from meshwright.explanations.levers import pulled
from meshwright.explanations.marginal_values import (
    binding,
    bolder_plans,
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


def outcome_of(step_s: float | None, status: str = "optimal") -> Any:
    best = SimpleNamespace(step_s=step_s, tokens_per_s_per_gpu=step_s)
    return SimpleNamespace(best=best if step_s else None, status=status)


def test_a_decision_binds_where_steps_are_shorter_without_it() -> None:
    """By more than a billionth, which is rounding."""
    steps_s = {"pins.tp": 2.0, "pins.pp": 2.0 - 1e-10, "pins.cp": 1.99, "pins.ep": 2.1}
    steps_s |= {"pins.zero": 0.0}
    freed: Any = [
        (SimpleNamespace(rule=rule, sentence="it is so"), outcome_of(step_s))
        for rule, step_s in steps_s.items()
    ]
    (told,) = binding(freed, outcome_of(2.0).best)
    assert told.change == "pins.cp (it is so)"
    assert (told.step_s, told.tokens_per_s_per_gpu) == (1.99, 1.99)


@pytest.mark.parametrize(
    ("status", "is_proven"),
    [("optimal", True), ("infeasible", True), ("feasible", False), ("unknown", False)],
)
def test_what_a_stopped_solve_found_is_not_proven(status: str, is_proven: bool) -> None:
    freed: Any = [(SimpleNamespace(rule="rules.even"), outcome_of(2.0, status))]
    (told,) = rule_prices(freed)
    assert told.is_proven is is_proven


def test_plans_of_more_risk_than_asked_for_are_worth_their_tokens() -> None:
    """64 sequences of 1,024 tokens in 4 s on 16 GPUs: 1,024 tokens a second each."""
    spec = mw.load({**SPEC, "limits": {"oom_risk": 0.1}}, mw.Spec)
    safety = [
        SimpleNamespace(oom_risk=risk, step_s=step_s, is_proven=proven)
        for risk, step_s, proven in (
            (0.05, 6.0, True),
            (0.1, 5.0, True),
            (0.2, 4.0, False),
            (0.5, None, True),
        )
    ]
    outcome: Any = SimpleNamespace(safety=safety, gpus=16)
    (told,) = bolder_plans(spec, outcome)
    assert told.change == "oom_risk 0.2"
    assert (told.step_s, told.tokens_per_s_per_gpu) == (4.0, 1024.0)
    assert not told.is_proven


def test_levers_that_are_asked_about_are_named_with_their_numbers() -> None:
    spec, asked_for = mw.load({**SPEC, "framework": "fsdp"}, mw.Spec), list[Spec]()
    (optimizer,) = (one for one in pulled(spec) if one.lever.switch == "optimizer")
    levers: Any = [SimpleNamespace(edit=optimizer.edit, numbers="optimizer")]

    def solve(other: Spec, _prepared: object) -> Any:
        asked_for.append(other)
        return outcome_of(1.0)

    told = [*marginal_values(spec, None, solve, levers)]
    assert told[-1].change == f"{optimizer.edit} (another optimizer)"
    assert asked_for[-1] == optimizer.spec
    assert len(told) == 1 + len([*marginal_values(spec, None, solve, ())])
