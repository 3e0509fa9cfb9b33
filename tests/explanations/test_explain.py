"""Explanations: conflicts conflict, repairs repair, and the first lines answer.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.check.check import checked
from meshwright.cost.job import Job, make_job
from meshwright.explanations import explain as explaining
from meshwright.explanations.conflict import (
    Infeasibility,
    NamedBits,
    analyse_infeasibility,
    any_skeleton_fits,
    solve_only_decisions,
)
from meshwright.explanations.decisions import TP_LINK, decisions_in, with_pins
from meshwright.explanations.explain import ANSWERED, Explainer, known_step_s
from meshwright.explanations.framework_rules import (
    _split_rules,
    explained_conflict,
    rules_behind,
)
from meshwright.explanations.judged_plan import asked_plan, slack
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.plans.rule import BrokenRule
from meshwright.report.explain import explain_sections
from meshwright.report.tables import Lines, seconds_text
from meshwright.results.explanation import Explanation
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec
from tests.helpers.command import run, unwrapped
from tests.helpers.extent import gate
from tests.helpers.strategies import specs
from tests.helpers.unlike import mixed, part

EXPLAINER = Explainer(Options())


def explained(name: str, plan: str) -> Explanation:
    return EXPLAINER.plan(mw.load(name, mw.Spec), read_plan(plan))


MANY = settings(
    max_examples=gate(20, everything=60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@MANY
@given(specs(most_layers=4))
def test_the_enumerator_agrees_with_the_solver_on_what_is_possible(spec: Spec) -> None:
    assume(not solve_only_decisions(spec))
    assert any_skeleton_fits(spec) == (solve(spec).best is not None)


def test_memory_of_a_plan_is_told_by_part() -> None:
    """70B on 2 stages: 18 bytes of 35.3 billion parameters on a GPU, 591 GiB."""
    explanation = explained("llama3-70b-128xa100", "tp=1,pp=2,zero=0")
    assert explanation.status == "does_not_fit"
    memory = next(rule for rule in explanation.broken_rules if rule.rule == "memory")
    assert memory.need is not None
    assert memory.need > 0.9 * 18 * 70.6e9 / 2 / 2**30
    assert explanation.conflict is not None
    assert {rule.rule for rule in explanation.conflict.rules} >= {"memory", "pins.pp"}
    assert any(repair.edits[0].startswith("pp: 2 ->") for repair in explanation.repairs)


def test_two_small_cards_need_more_of_them_or_larger_ones() -> None:
    """Full fine-tuning of 8B takes more than 2 x 24 GB, with the optimizer away."""
    explanation = EXPLAINER.spec(mw.load("llama3-8b-2x4090-pcie", mw.Spec))
    assert explanation.conflict is not None
    assert [rule.rule for rule in explanation.conflict.rules] == [
        "memory",
        "offload_supported",
    ]
    edits = [edit for repair in explanation.repairs for edit in repair.edits]
    assert "cluster.count: 1 -> 2" in edits
    # 32 GiB of a 5090 are too few where no profile has told how far memory is off.
    assert "cluster.topology.gpu: rtx-4090 -> rtx-6000-ada-48gb" in edits
    # No card of 24 GB has more, however a limit is set, and no box more slots.
    assert not any(edit.startswith(("limits.", "cluster.topology.l")) for edit in edits)
    assert {repair.against for repair in explanation.repairs} == {"the fastest repair"}


def test_a_limit_is_raised_to_what_the_plan_that_comes_closest_needs() -> None:
    pins = ["tp=2", "micro_batch=1", "recompute=full", "offload=none", "zero=0"]
    spec = mw.load("gpt-1.3b-2xa100-pcie", mw.Spec, pins=pins)
    limits = spec.limits.model_copy(update={"memory_gib": 10.0})
    limited = spec.model_copy(update={"limits": limits})
    explanation = EXPLAINER.spec(limited)
    assert explanation.memory is not None
    assert explanation.nearest is not None
    near, broken = checked(make_job(limited), explanation.nearest)
    assert tuple(broken) == explanation.broken_rules
    assert max(near.stages, key=lambda stage: stage.total_gib) == explanation.memory
    need_gib = math.ceil(explanation.memory.total_gib * 100) / 100
    assert explanation.repairs[-1].edits == (
        f"limits.memory_gib: 10.00 -> {need_gib:.2f}",
    )


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ("pp=5,dp=2", "pp 5 x dp 2 = 10, the cluster has 8"),
        ("pp=2,micro_batch=7", "64 sequences / (dp 1 x micro_batch 7) = 9.143"),
    ],
)
def test_a_sum_that_stands_alone_is_told_with_the_plan_asked_for(
    plan: str, told: str
) -> None:
    spec = with_pins(mw.load("llama2-13b-8xa100", mw.Spec), read_plan(plan))
    (rule,) = rules_behind(spec, [one.rule for one in decisions_in(spec)])
    assert rule.arithmetic == told


def test_heads_are_blamed_where_heads_are_the_reason() -> None:
    """40 heads over 16 ranks: no memory and no link would mend that."""
    spec = mw.load("llama3-8b-2xh100-nvlink", mw.Spec)
    explanation = EXPLAINER.plan(spec, Pins.model_validate({"tp": 8, "pp": 3}))
    assert explanation.conflict is not None
    assert "memory" not in {rule.rule for rule in explanation.conflict.rules}


def test_a_plan_that_fits_is_told_by_its_distance() -> None:
    explanation = explained("llama2-13b-8xa100", "tp=8")
    assert explanation.status == "fits"
    assert explanation.plan is not None
    assert explanation.best is not None
    assert explanation.best.best is not None
    assert explanation.plan.step_s > explanation.best.best.step_s
    assert explanation.gap is not None
    assert explanation.best.optimum is not None
    assert (
        explanation.gap.step_s
        == explanation.plan.step_s - explanation.best.optimum.step_s
    )
    assert sum(explanation.gap.terms.values()) == pytest.approx(
        explanation.gap.step_s, rel=1e-9
    )
    assert explanation.helps[0].change.startswith("tp: 8 ->")
    assert explanation.helps[0].step_s == pytest.approx(explanation.best.best.step_s)


def test_a_change_says_which_open_degrees_change_with_it() -> None:
    """With 8 shards no rank is left for tensor parallelism, which is open."""
    spec = mw.load("llama2-13b-8xa100", mw.Spec)
    explanation = mw.explain(spec, {"dp_shard": 8})
    assert explanation.plan is not None
    (change,) = (
        one for one in explanation.helps if one.change.startswith("dp_shard: 8 ->")
    )
    assert explanation.plan.plan.tp == 1
    assert change.beside == ("tp=2", "pp=2")
    assert change.whole == f"{change.change}, with tp=2, pp=2"
    assert f"Change {change.whole}: " in str(explain_sections(explanation)[0])
    pinned = explained("llama2-13b-8xa100", "tp=8")
    assert all("tp=" not in " ".join(one.beside) for one in pinned.helps)


def test_micro_batches_follow_a_field_that_is_left_open() -> None:
    """A trainer's file gives both numbers of its batch: neither moves alone."""
    told = explained("llama2-13b-8xa100", "tp=8,micro_batch=1,microbatches=64")
    assert told.plan is not None
    assert (told.plan.plan.micro_batch, told.plan.plan.microbatches) == (1, 64)
    by_field = {one.change.partition(":")[0]: one for one in told.helps}
    assert {"tp", "micro_batch"} <= {*by_field}
    larger = by_field["micro_batch"]
    new = int(larger.change.split()[-1])
    assert larger.beside == (f"microbatches={64 // new}",)
    alone = explained("llama2-13b-8xa100", f"tp=8,micro_batch={new}")
    assert alone.plan is not None
    assert larger.step_s == pytest.approx(alone.plan.step_s, rel=1e-3)


def test_a_change_that_gains_nothing_to_speak_of_is_left_out(tmp_path: Path) -> None:
    """On one GPU the stage of ZeRO changes a step by less than its last digit."""
    file = tmp_path / "spec.yaml"
    file.write_text(
        "model: llama3-8b\ncluster: 1xRTX3090\nframework: deepspeed\ntraining: "
        "{seq_len: 2048, global_batch: 16, lora: {rank: 16, weights: nf4}}\n"
    )
    told = EXPLAINER.plan(mw.load(file, mw.Spec), read_plan("zero=1,offload=optimizer"))
    assert told.best is not None
    assert told.best.optimum is not None
    assert told.plan is not None
    assert told.best.optimum.step_s <= told.plan.step_s
    assert told.helps == ()


def test_the_change_that_gains_most_says_how_much() -> None:
    explanation = explained("llama2-13b-8xa100", "tp=8")
    assert explanation.plan is not None
    step_s = explanation.helps[0].step_s
    assert step_s is not None
    first = explain_sections(explanation)[0]
    assert isinstance(first, Lines)
    told = first.lines[2]
    assert (
        f"{step_s:.2f} s a step, {1 - step_s / explanation.plan.step_s:.1%} less."
        in told
    )


def test_more_memory_and_links_never_hurt() -> None:
    explanation = EXPLAINER.spec(mw.load("gpt-1.3b-2x3090-nvlink", mw.Spec))
    assert explanation.plan is not None
    for change in explanation.marginal_values:
        if change.change.endswith("+10 %"):
            assert change.step_s is not None
            assert change.step_s <= explanation.plan.step_s * (1 + 1e-9)


@pytest.mark.parametrize("plan", [None, "tp=2", "tp=1,zero=0"])
def test_the_first_three_lines_answer(plan: str | None) -> None:
    spec = mw.load("llama3-8b-2x4090-pcie", mw.Spec)
    found = EXPLAINER.plan(spec, read_plan(plan)) if plan else EXPLAINER.spec(spec)
    first = explain_sections(found)[0]
    assert isinstance(first, Lines)
    fits, why, change = first.lines
    assert fits in ("Does not fit.", "No plan fits.")
    assert "memory" in why
    assert change.startswith("Change ")


def test_explain_on_the_command_line(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    assert run("solve", "gpt-1.3b-2x3090-nvlink", "--format", "json", "-o", str(answer))
    result = run(
        "explain", "gpt-1.3b-2x3090-nvlink", "--plan", str(answer), "--format", "json"
    )
    data: dict[str, Any] = json.loads(result.stdout)
    assert (result.code, data["status"], data["helps"]) == (0, "fits", [])
    none = run("explain", "llama3-8b-2x4090-pcie")
    assert none.code == 1
    assert "Because of memory and offload_supported: stage 0 needs " in unwrapped(
        none.stdout
    )


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([0, 1, 2, 3]))
def test_plans_are_read_as_they_are_written(tp: int, pp: int, zero: int) -> None:
    pins = read_plan(f"tp={tp}, pp={pp},zero=[0,{zero}],layers=[1,2]")
    assert pins == Pins.model_validate(
        {"tp": tp, "pp": pp, "zero": [0, zero], "layers": [1, 2]}
    )


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("tp=8,qq=2", "error: --plan qq=2: expected FIELD=VALUE; "),
        ("tp=", "error: --plan tp=: expected FIELD=VALUE; "),
        ("tp=many", "error: --plan tp=many: tp: 'many': expected a whole number"),
    ],
)
def test_wrong_plans_are_named(plan: str, expected: str) -> None:
    result = run("explain", "gpt-1.3b-2x3090-nvlink", "--plan", plan)
    assert result.code == 2
    assert result.stderr.startswith(expected)


def test_rules_are_printed_with_their_sources() -> None:
    """KV heads are repeated in Megatron-LM, not in torchtitan."""
    rules = {
        name: json.loads(run("explain", "--rules", name, "--format", "json").stdout)
        for name in ("megatron", "torchtitan")
    }
    told = {
        name: next(one for one in every if one["rule"] == "kv_heads_divisible")
        for name, every in rules.items()
    }
    assert "repeated" in told["megatron"]["sentence"]
    assert "repeated" not in told["torchtitan"]["sentence"]
    assert all(one["source"] for every in rules.values() for one in every)
    every = run("explain", "--rules").stdout
    assert all(name in every for name in ("zero_with_pipeline", "offload_supported"))


def test_unknown_frameworks_and_missing_specs_are_named() -> None:
    assert run("explain", "--rules", "jax").stderr.startswith(
        "error: --rules: 'jax': no such framework; accepted: deepspeed, "
    )
    assert run("explain").stderr.startswith(
        "error: --model and --cluster: missing; expected a spec, or --model NAME and "
        "--cluster NAME"
    )


def test_on_a_large_lattice_changes_are_worth_at_least_what_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = mw.load("llama3-8b-2xh100-nvlink", mw.Spec)
    proven = {
        marginal_value.change: marginal_value
        for marginal_value in EXPLAINER.spec(spec).marginal_values
    }
    monkeypatch.setattr(explaining, "MOST_LISTED_AGAIN", 0)
    told = EXPLAINER.spec(spec)
    open_changes = [
        marginal_value
        for marginal_value in told.marginal_values
        if not marginal_value.is_proven
    ]
    assert {open_change.change for open_change in open_changes} >= {"batch x 2"}
    text = "\n".join(map(str, explain_sections(told)))
    for open_change in open_changes:
        step_s = proven[open_change.change].step_s
        assert proven[open_change.change].is_proven
        assert step_s is not None
        assert open_change.step_s is not None
        assert open_change.step_s >= step_s * (1 - 1e-9)
        assert f"<= {seconds_text(open_change.step_s)}" in text


def test_names_are_bits_and_bits_are_names() -> None:
    decisions = NamedBits(("a", "b", "c"))
    assert decisions.bits(["c", "a", "unknown", "a"]) == 0b101
    assert decisions.names_of(0b110) == ("b", "c")
    assert decisions.every == 0b111
    assert NamedBits(()).every == 0


@cache
def small() -> tuple[Job, PricedPlan]:
    """Return the job of a small spec with a batch of 64, and its best plan."""
    fields: dict[str, Any] = {
        "model": "gpt-1.3b",
        "cluster": {"topology": "dgx-h100", "count": 2},
        "training": {"seq_len": 1024, "global_batch": 64},
    }
    spec = mw.load(fields, Spec)
    best = solve(spec, Options(is_brief=True)).best
    assert best is not None
    return make_job(spec), best


def batch_of(sequences: int, **limits: float) -> Job:
    spec = small()[0].spec
    training = spec.training.model_copy(update={"global_batch": sequences})
    kept = spec.limits.model_copy(update=limits)
    return make_job(spec.model_copy(update={"training": training, "limits": kept}))


def test_a_plan_known_before_a_change_has_as_many_sequences_as_are_asked_for() -> None:
    job, best = small()
    per_step = best.plan.dp * best.plan.micro_batch
    known_s = known_step_s(job, best.plan)
    assert best.step_s < known_s < best.step_s * (1 + 1e-6)
    assert 1.5 < known_step_s(batch_of(128), best.plan) / known_s < 2.01
    assert known_step_s(batch_of(per_step + 1), best.plan) == math.inf
    assert known_step_s(batch_of(64, memory_margin=0.99), best.plan) == math.inf
    fewer = best.plan.model_copy(update={"dp_shard": 1, "dp_replicate": 1, "tp": 1})
    assert fewer.world_size < 16
    assert known_step_s(job, fewer) == math.inf


def test_a_pinned_mesh_and_a_limit_on_links_may_be_what_conflicts() -> None:
    """Eight GPUs of each host are one factor, and 16 are two, on slower links."""
    pins = Pins.model_validate({"tp": 16, "mesh": {"tp": [8, 1]}})
    explanation = EXPLAINER.spec(small()[0].spec.model_copy(update={"pins": pins}))
    assert explanation.conflict is not None
    assert {rule.rule for rule in explanation.conflict.rules} == {
        "pins.tp",
        "pins.mesh",
    }
    limited = batch_of(64, tp_min_link_gb_s=1e4).spec
    wide = limited.model_copy(update={"pins": Pins.model_validate({"tp": 16})})
    explanation = EXPLAINER.spec(wide)
    assert explanation.conflict is not None
    assert {rule.rule for rule in explanation.conflict.rules} == {"pins.tp", TP_LINK}


def test_what_no_search_would_try_is_refused_by_its_rule_where_it_is_pinned() -> None:
    """Megatron-LM offloads no parameters."""
    pins = Pins.model_validate({"offload": "parameters", "tp": 2, "pp": 1})
    explanation = EXPLAINER.spec(small()[0].spec.model_copy(update={"pins": pins}))
    assert explanation.conflict is not None
    names = [rule.rule for rule in explanation.conflict.rules]
    assert names == ["pins.offload", "offload_supported"]


def test_what_is_left_of_links_is_told_of_the_busiest() -> None:
    job, best = small()
    told = {one.rule: one for one in slack(job, best)}
    link = told["link_utilisation"]
    assert link.need == best.link_utilisation
    busy = {load.link: load.utilisation for load in best.all_links}
    assert busy[link.where] == max(busy.values())
    assert min(busy.values()) < max(busy.values())


def test_numbers_that_add_up_leave_the_fields_that_were_given() -> None:
    spec = small()[0].spec
    pinned = spec.model_copy(update={"pins": Pins(tp=2, pp=2, dp=2)})
    told = [(one.name, one.value, one.origin) for one in asked_plan(pinned)]
    assert told == [("tp", "2", "given"), ("pp", "2", "given"), ("dp", "2", "given")]


def test_a_conflict_with_memory_says_what_the_state_takes_of_all_memory() -> None:
    spec = batch_of(64, memory_margin=0.99).spec
    infeasibility = Infeasibility(NamedBits(("memory",)), 1, [1], is_complete=True)
    broken = BrokenRule(rule="chunks_even", sentence="a rule on splits")
    miss: Any = SimpleNamespace(
        state_gib=1234.5, description="tp=1", broken_rules=(broken,)
    )
    (memory, *_) = explained_conflict(spec, infeasibility, miss).rules
    every_gib = 16 * spec.usable_gib
    assert f"{every_gib:,.0f} GiB of all 16; " in memory.sentence
    assert memory.sentence.endswith("take 1,234 GiB")
    none: Any = SimpleNamespace(**{**vars(miss), "state_gib": 0.0})
    (offloaded, *_) = explained_conflict(spec, infeasibility, none).rules
    assert offloaded.sentence.endswith(
        "of the plan that comes closest are on the hosts"
    )
    assert _split_rules(["memory", "pins.tp"], miss) == ()
    assert [rule.rule for rule in _split_rules(["pins.layers"], miss)] == [
        "chunks_even"
    ]


def test_plans_on_unlike_parts_are_judged_by_solves_alone() -> None:
    """Each choice of parts has a lattice of its own: none tells of slack or rank."""
    pins = {"micro_batch": 1, "zero": 0, "recompute": "none", "tp": 1, "pp": 2}
    spec = mixed(part(1, 100, 40), part(1, 50, 40), batch=2, dp_shard=1, **pins)
    explanation = EXPLAINER.plan(spec, Pins(layers=(3, 1)))
    assert (explanation.status, explanation.slack, explanation.standing) == (
        "fits",
        (),
        None,
    )
    assert [one.change for one in explanation.helps] == ["layers: [3, 1] -> [1, 3]"]
    assert explanation.best is not None
    assert explanation.best.optimum is not None
    assert explanation.helps[0].step_s == explanation.best.optimum.step_s
    worth = EXPLAINER._worth(explanation.best.optimum, None, spec, None)
    assert worth.optimum == explanation.best.optimum


def test_on_unlike_parts_each_set_of_decisions_is_solved_for() -> None:
    """No lattice has the skeletons of all choices of parts."""
    spec = mixed(part(1, 100, 4.5), part(1, 50, 4.5), batch=2, tp=1, pp=2)

    def has_plan(changed: Spec) -> bool:
        return changed.pins.pp is None or changed.pins.tp is None

    found = analyse_infeasibility(spec, has_plan)
    assert found.decisions.names_of(found.conflict) == ("pins.tp", "pins.pp")
    sets = map(found.decisions.names_of, found.correction_sets)
    assert {*sets} == {("pins.tp",), ("pins.pp",)}
    assert not found.is_complete


def test_unlike_parts_that_one_memory_for_all_would_refuse_have_a_plan() -> None:
    """Of four layers the larger GPU takes those for which the other has no room."""
    pins = {"micro_batch": 1, "zero": 0, "recompute": "none", "tp": 1, "pp": 2}
    spec = mixed(part(1, 100, 40), part(1, 50, 4.5), batch=2, dp_shard=1, **pins)
    assert EXPLAINER._has_plan(spec)
    assert not any_skeleton_fits(spec)


def test_where_nothing_mends_a_spec_its_conflict_is_told_alone() -> None:
    """405 billion frozen weights have no room on one card, in no framework's way."""
    fields = {
        "model": "llama3-405b",
        "cluster": {"gpu": "rtx-3090"},
        "framework": "deepspeed",
        "training": {
            "seq_len": 131_072,
            "global_batch": 1,
            "precision": "fp16",
            "lora": {"rank": 8},
        },
    }
    spec = mw.load(fields, mw.Spec)
    told = list[str]()
    explainer = Explainer(Options(on_progress=told.append))
    mended = explainer.mended(spec, solve(spec, Options()))
    assert told.count(ANSWERED) == 1
    assert mended.conflict is not None
    assert [rule.rule for rule in mended.conflict.rules] == ["memory"]
    assert mended.repair is None


def test_that_the_verdict_is_there_is_told_once() -> None:
    """What comes after it compares with other plans, and takes longer."""
    spec, told = mw.load("gpt-1.3b-2xa100-pcie", mw.Spec), list[str]()
    explainer = Explainer(Options(on_progress=told.append))
    for plan, fits in (("tp=2", True), ("tp=1,micro_batch=256", False)):
        told.clear()
        assert explainer.plan(spec, read_plan(plan)).fits is fits
        assert told.count(ANSWERED) == 1


def test_a_pinned_mesh_may_be_refused_by_a_rule_of_the_framework() -> None:
    """There is one mesh with what is pinned, and DeepSpeed shards no pipelines so."""
    spec = small()[0].spec.model_copy(update={"framework": "deepspeed"})
    pins = {"pp": 2, "zero": 3, "mesh": {"pp": [1, 2], "dp_shard": [8, 1]}}
    explanation = EXPLAINER.spec(
        spec.model_copy(update={"pins": Pins.model_validate(pins)})
    )
    assert explanation.conflict is not None
    names = [rule.rule for rule in explanation.conflict.rules]
    assert names == ["pins.pp", "pins.zero", "zero_with_pipeline"]


def test_fields_that_gain_if_left_open_come_best_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one no plan was found in time, and one gains nothing but rounding."""
    job, priced = small()
    asked = Pins.model_validate({"tp": 2, "pp": 1, "zero": 1, "micro_batch": 1})
    steps = {"tp": 0.9, "pp": 0.5, "zero": None, "micro_batch": 1 - 1e-10}
    spec = with_pins(job.spec, asked)

    def solved_without(other: Spec) -> Any:
        (name,) = (n for n in steps if getattr(other.pins, n) is None)
        share = steps[name]
        changed = share and {"step_s": priced.step_s * share}
        best = changed and priced.model_copy(update=changed)
        return SimpleNamespace(best=best)

    explainer = Explainer(Options())
    monkeypatch.setattr(explainer, "_recommend_briefly", solved_without)
    monkeypatch.setattr(explainer, "_solve_briefly", solved_without)
    found = [*explainer._open_fields(spec, asked, priced)]
    assert [one.change.partition(":")[0] for one in found] == ["pp", "tp"]
    assert [one.step_s for one in found] == [priced.step_s * n for n in (0.5, 0.9)]


def test_a_field_that_gains_beyond_what_was_run_alone_is_told() -> None:
    """The plan to run stays as slow as the one asked; a doubted one is faster."""
    fields = {
        "model": "qwen2.5-7b",
        "cluster": {"topology": "g5.12xlarge", "count": 2},
        "framework": "deepspeed",
        "training": {"seq_len": 2048, "global_batch": 32},
    }
    explanation = mw.explain(mw.load(fields, mw.Spec), {"tp": 1, "pp": 1, "zero": 3})
    assert explanation.plan is not None
    assert explanation.helps[0].change == "tp: 1 -> 4"
    assert (explanation.helps[0].step_s or math.inf) < explanation.plan.step_s


@pytest.mark.parametrize("is_likely", [True, False])
def test_a_changed_spec_is_solved_without_a_bound_where_none_is_within_it(
    is_likely: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First are plans that take a quarter longer for as many tokens on a GPU."""
    job, priced = small()
    asked = list[float]()

    def solved_within(_job: Job, most_s: float) -> Any:
        asked.append(most_s)
        is_found = is_likely or math.isinf(most_s)
        return SimpleNamespace(best=priced if is_found else None)

    explainer = Explainer(Options())
    monkeypatch.setattr(explaining, "known_step_s", lambda *_: math.inf)
    monkeypatch.setattr(explainer, "_solve_within", solved_within)
    assert explainer._solve_near(priced, job.spec).best is priced
    assert asked[0] == pytest.approx(1.25 * priced.step_s)
    assert asked[1:] == ([] if is_likely else [math.inf])
