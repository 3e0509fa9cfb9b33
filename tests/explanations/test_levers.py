"""Levers: which a framework offers, what each gains, and which mend a spec."""

from __future__ import annotations

from functools import cache, partial
from random import Random
from typing import Any

import pytest

import meshwright as mw
from meshwright import DEFAULT_PROFILE
from meshwright.api.options import read_profile
from meshwright.explanations.decisions import with_pins
from meshwright.explanations.levers import (
    LEAST_GAIN,
    _share,
    frees_memory,
    lever_sets,
    priced_levers,
    pulled,
)
from meshwright.frameworks.base.registry import framework
from meshwright.frameworks.base.switches import Switch
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.plans.plan import Plan
from meshwright.results.outcome_parts import LEVER_EFFECTS, PricedLever
from meshwright.rules.legality import framework_rules
from meshwright.spec.spec import framework_names
from meshwright.spec.training import Lora, Overlap, Training

TRAINING = {"seq_len": 8192, "global_batch": 64}


def spec(framework: str, count: int = 1, **training: Any) -> mw.Spec:
    fields = {
        "model": "qwen3-8b",
        "cluster": {"topology": "dgx-h100", "count": count},
        "framework": framework,
        "training": {**TRAINING, **training},
    }
    return mw.load(fields, mw.Spec)


@cache
def told(name: str) -> mw.Outcome:
    return mw.solve(spec(name), safety=False, by_kind=False)


def test_levers_are_priced_without_the_tasks_of_a_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a lever the step in closed form is told, which needs no graph of tasks."""
    best = told("megatron").best
    assert best is not None
    counted: list[object] = []
    monkeypatch.setattr("meshwright.check.check.task_graph", counted.append)
    assert priced_levers(spec("megatron"), best.plan, read_profile(DEFAULT_PROFILE))
    assert not counted


@pytest.mark.parametrize("name", framework_names())
def test_every_lever_is_a_field_of_training_with_an_option_and_a_source(
    name: str,
) -> None:
    for lever in framework(name).levers:
        field, _, member = lever.switch.partition(".")
        assert field in Training.model_fields
        assert field != "overlap" or member in Overlap.model_fields
        assert lever.option
        assert any(char.isdigit() for char in lever.source) or "trl" in lever.source
        fp8 = {"precision": "fp8"} if field == "fp8_weights" else {}
        for setting in lever.settings_for(spec(name)):
            if not member:
                Training.model_validate({**TRAINING, **fp8, field: setting})


@pytest.mark.parametrize("name", framework_names())
def test_levers_are_what_the_rules_of_the_framework_allow(name: str) -> None:
    """State that a framework cannot keep, and traffic it cannot send, is no lever."""
    known = framework(name)
    levers = {lever.switch for lever in known.levers}
    state = {"moments", "master_weights", "fp8_weights"} & levers
    pure = (
        {"pure bf16"}
        if ("none",)
        in {
            lever.settings for lever in known.levers if lever.switch == "master_weights"
        }
        else set()
    )
    assert (state - {"master_weights"} if pure else state) | pure <= known.state_options
    assert "expert_dispatch" not in levers or known.has_deepep
    assert "partition_activations" not in levers or known.partitions_activations
    assert levers & {"offload_activations"} <= known.on_host
    assert framework_rules(spec(name))


def levers_on(
    framework_name: str, words: str
) -> tuple[mw.Spec, Plan, tuple[PricedLever, ...]]:
    """Return a spec, a plan of it in words, and the levers on that plan."""
    asked, profile = spec(framework_name), read_profile(DEFAULT_PROFILE)
    pinned = with_pins(asked, read_plan(words, asked))
    plan = asked_plan(pinned, Options(profile=profile))
    return asked, plan, priced_levers(asked, plan, profile)


def test_a_lever_gains_what_a_solve_with_it_has() -> None:
    """The plan stays, so a solve with the switch on is at least as fast."""
    outcome = told("torchtitan")
    compiled = next(one for one in outcome.levers if one.switch == "compile")
    assert outcome.best is not None
    assert compiled.option == "CompileConfig(enable=True)"
    assert compiled.numbers == "rounding"
    assert compiled.gain == pytest.approx(outcome.best.step_s / compiled.step_s - 1)
    on = spec("torchtitan", compile=True)
    priced = mw.price(on, outcome.best.plan)
    assert priced.step_s == pytest.approx(compiled.step_s)
    assert priced.peak_gib == pytest.approx(compiled.memory_gib)
    again = mw.solve(on, safety=False, by_kind=False)
    assert again.optimum is not None
    assert again.optimum.step_s <= compiled.step_s
    assert "compile" not in {one.switch for one in again.levers}


def test_levers_of_stages_are_told_by_the_fullest_stage_and_the_whole_step() -> None:
    """What a plan of two unequal stages takes with the lever pulled, priced alone."""
    words = "tp=2,pp=2,vpp=1,layers=[20,16],micro_batch=1,recompute=none"
    asked, plan, found = levers_on("megatron", words)
    now, levers = mw.price(asked, plan), {one.edit: one for one in found}
    told = 0
    for one in pulled(asked):
        then = mw.price(one.spec, plan)
        gain = now.step_s / then.step_s - 1
        freed_gib = now.peak_gib - then.peak_gib
        lever = levers.get(one.edit)
        if lever is None:
            continue
        told += 1
        assert (lever.step_s, lever.memory_gib) == (then.step_s, then.peak_gib)
        assert (lever.gain, lever.freed_gib) == pytest.approx((gain, freed_gib))
        assert gain + freed_gib / now.peak_gib / 10 > LEAST_GAIN
        fields = (lever.option, lever.numbers, lever.source)
        assert fields == (one.option, one.lever.numbers, one.lever.source)
    assert told == len(levers) > 1
    assert any(one.freed_gib for one in levers.values())


def test_the_best_lever_comes_first_and_none_gains_nothing() -> None:
    outcome = told("fsdp")
    gains = [one.gain for one in outcome.levers]
    assert outcome.levers[0].switch == "attention"
    assert outcome.levers[0].edit == "training.attention: flash -> flash3"
    assert all(one.gain > 0 or one.freed_gib > 0 for one in outcome.levers)
    assert gains[0] == max(gains)
    assert mw.Outcome.from_json(outcome.to_json()).levers == outcome.levers


def test_a_tenth_of_the_memory_freed_counts_as_much_as_a_hundredth_of_time() -> None:
    levers = told("fsdp").levers
    freed = [one.freed_gib / (one.memory_gib + one.freed_gib) for one in levers]
    worth = [one.gain + share / 10 for one, share in zip(levers, freed, strict=True)]
    assert worth == sorted(worth, reverse=True)
    gains = [one.gain for one in levers]
    assert gains != sorted(gains, reverse=True)


@pytest.mark.parametrize(("least", "chunks"), [(0.005, 8), (0.0001, 64)])
def test_of_positions_the_mildest_near_the_best_is_told(
    least: float, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 chunks of the loss free 1.4 % more of the GPU than 8, and 512 0.05 % more."""
    best = told("fsdp").best
    assert best is not None
    monkeypatch.setattr("meshwright.explanations.levers.LEAST_GAIN", least)
    levers = priced_levers(spec("fsdp"), best.plan, read_profile(DEFAULT_PROFILE))
    edits = {one.switch: one.edit for one in levers}
    assert edits["loss_chunks"] == f"training.loss_chunks: 1 -> {chunks}"


def test_a_switch_that_was_left_off_is_a_lever() -> None:
    off = spec("megatron", 2, overlap={"gradients": False, "parameters": False})
    found = mw.solve(off, safety=False, by_kind=False).levers
    options = {one.switch: one.option for one in found}
    assert options["overlap.gradients"] == "--overlap-grad-reduce"


def test_chunks_of_the_loss_fit_nearly_a_million_tokens_on_one_node() -> None:
    """282 GiB of logits are no reason to buy 32 more GPUs."""
    told = mw.explain(spec("fsdp", seq_len=15 * 2**16, global_batch=8))
    first, *others = told.repairs
    assert not told.fits
    assert first.edits == ("training.loss_chunks: 1 -> 8",)
    assert first.changes == "flag"
    assert "chunked_nll" in first.note
    assert any(one.edits == ("cluster.count: 1 -> 4",) for one in others)
    mended = spec("fsdp", seq_len=15 * 2**16, global_batch=8, loss_chunks=8)
    found = mw.solve(mended, safety=False, by_kind=False, repair=False).best
    assert found is not None
    assert found.step_s == first.step_s


@pytest.mark.parametrize("name", ["fsdp", "deepspeed", "torchtitan"])
def test_parts_of_the_loss_fill_the_tile_of_a_matmul(name: str) -> None:
    """4,096 parts of 4,096 tokens are rows, each of which reads the whole head."""
    asked = spec(name, seq_len=4096)
    many = with_pins(asked, read_plan("micro_batch=8", asked))
    for of, most in ((asked, 8), (many, 64), (spec(name, seq_len=512), 8)):
        parts = [
            lever.settings_for(of)[-1]
            for lever in framework(name).levers
            if lever.switch == "loss_chunks"
        ]
        assert parts == [most]


def test_levers_of_memory_are_told_with_the_best_plan_beside_them() -> None:
    """A plan that offloads gains more by another plan than by the switch alone."""
    fields = {
        "model": "yi-34b",
        "cluster": {"topology": "dgx-h100"},
        "framework": "fsdp",
        "training": TRAINING,
        "pins": {"recompute": ["none", "full"]},
    }
    asked = mw.load(fields, mw.Spec)
    told = mw.explain(asked)
    assert told.plan is not None
    assert told.plan.plan.offload != "none"
    values = {value.change: value for value in told.marginal_values}
    (change,) = (name for name in values if name.startswith("training.optimizer"))
    assert change == "training.optimizer: adamw -> adamw-8bit (another optimizer)"
    training = {**TRAINING, "optimizer": "adamw-8bit"}
    edited = mw.load({**fields, "training": training}, mw.Spec)
    best = mw.solve(edited, safety=False, by_kind=False).best
    assert best is not None
    assert best.plan.offload == "none"
    assert values[change].step_s == pytest.approx(best.step_s)
    (lever,) = (one for one in told.levers if one.switch == "optimizer")
    assert lever.step_s > best.step_s


def test_levers_need_no_other_plan_where_none_pays_for_memory() -> None:
    told = mw.explain(spec("megatron", 8))
    assert told.plan is not None
    assert told.plan.plan.offload == "none"
    assert told.best is not None
    assert told.best.by_kind
    changes = [value.change for value in told.marginal_values]
    assert not any(change.startswith("training.") for change in changes)


def test_frozen_weights_in_16_bits_may_be_kept_in_4() -> None:
    def edits(lora: Any) -> list[str]:
        changed = spec("fsdp")
        training = changed.training.model_copy(update={"lora": lora})
        pulls = pulled(changed.model_copy(update={"training": training}))
        return [one.edit for one in pulls if "lora" in one.edit]

    assert edits(Lora(rank=8)) == ["training.lora.weights: bf16 -> nf4"]
    assert edits(Lora(rank=8, weights="int8")) == []
    assert edits(Lora(rank=8, weights="int8", ends="bf16")) == [
        "training.lora.ends: bf16 -> frozen"
    ]
    assert edits(None) == []


def test_a_lever_that_needs_another_is_offered_beside_it_alone() -> None:
    """torchtitan's asynchronous tensor parallelism is a pass of its compiler."""
    asked = "training.overlap.tp: false -> true"
    offered = [
        asked in {one.edit for one in pulled(spec("torchtitan", compile=compiled))}
        for compiled in (False, True)
    ]
    assert offered == [False, True]


def test_a_lever_that_would_break_a_rule_is_none() -> None:
    """Remainders of master weights are kept by a sharded optimizer alone."""
    asked = spec("megatron")
    profile = read_profile(DEFAULT_PROFILE)
    switches = {}
    for words in ("tp=8,micro_batch=1", "tp=4,zero=1,micro_batch=1"):
        pinned = with_pins(asked, read_plan(words, asked))
        plan = asked_plan(pinned, Options(profile=profile))
        levers = priced_levers(asked, plan, profile)
        switches[words] = {one.switch for one in levers}
    held = ["master_weights" in found for found in switches.values()]
    assert held == [False, True]


def test_levers_of_a_plan_that_does_not_fit_say_whether_it_does_then() -> None:
    """A rule that is broken already stands in the way of no lever."""
    words = "tp=1,cp=1,zero=3,micro_batch=8,recompute=none,offload=none"
    _, _, levers = levers_on("fsdp", words)
    assert len(levers) > 2
    assert not any(lever.fits for lever in levers)


def test_time_gained_and_memory_freed_add_up() -> None:
    """3 % of the time, and 8 of 80 GiB, of which a tenth counts."""
    assert _share(0.03, 8.0, 80.0) == pytest.approx(0.04)
    assert _share(0.03, -8.0, 80.0) == pytest.approx(0.02)


def drawn_needs(name: str, seed: int) -> list[dict[str, int]]:
    """Return sets of levers, by their least positions, of which one is enough."""
    draw = Random(seed)
    switches = sorted({lever.switch for lever in framework(name).levers})
    offered = [switch for switch in switches if offers(name, switch)]
    sets = []
    for _ in range(draw.randint(1, 2)):
        chosen = draw.sample(offered, min(draw.randint(1, 4), len(offered)))
        sets.append({one: draw.randrange(len(offers(name, one))) for one in chosen})
    return sets


@cache
def offers(name: str, switch: str) -> tuple[Any, ...]:
    """Return the positions of a lever of memory that a spec does not have yet."""
    if not frees_memory(switch):
        return ()
    pulls = pulled(spec(name))
    return tuple(one.setting for one in pulls if one.lever.switch == switch)


def has_enough(name: str, needs: list[dict[str, int]], given: mw.Spec) -> bool:
    """Return whether all levers of one of the sets are at least where they must be."""

    def position(switch: str) -> int:
        now, positions = Switch(switch).of(given), offers(name, switch)
        return positions.index(now) if now in positions else -1

    return any(all(position(one) >= at for one, at in need.items()) for need in needs)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["fsdp", "deepspeed", "megatron", "torchtitan"])
def test_the_least_levers_that_are_enough_are_found_of_all_sets(
    name: str, seed: int
) -> None:
    """Alone in the mildest position, or together in the strongest, and none too many.

    Levers that change other numbers of training are pulled only where it takes them.
    """
    asked, needs = spec(name), drawn_needs(name, seed)
    found = [*lever_sets(asked, partial(has_enough, name, needs))]
    told = [{one.lever.switch: one.setting for one in pulls} for pulls in found]
    alone = [need for need in needs if len(need) == 1]
    if alone:
        least = dict[str, int]()
        for (switch, at), *_ in (need.items() for need in alone):
            least[switch] = min(at, least.get(switch, at))
        expected = {switch: offers(name, switch)[at] for switch, at in least.items()}
        assert {switch: at for one in told for switch, at in one.items()} == expected
        assert {len(one) for one in told} == {1}
        return
    (together,) = told
    assert all(at == offers(name, switch)[-1] for switch, at in together.items())
    assert {*together} in [{*need} for need in needs]
    (pulls,) = found
    assert has_enough(name, needs, pulls[-1].spec)
    effects = {lever.switch: lever.numbers for lever in framework(name).levers}
    order = [*LEVER_EFFECTS]
    worst = [max(order.index(effects[switch]) for switch in need) for need in needs]
    assert max(order.index(effects[switch]) for switch in together) == min(worst)


def test_no_levers_are_pulled_where_all_together_are_not_enough() -> None:
    asked = list[mw.Spec]()

    def has_plan(given: mw.Spec) -> bool:
        asked.append(given)
        return False

    assert [*lever_sets(spec("fsdp"), has_plan)] == []
    assert asked


def test_the_allocator_is_a_lever_where_a_spec_has_the_plain_one() -> None:
    spec = mw.load("llama2-13b-8xa100", mw.Spec)
    assert "expandable_segments" not in {one.lever.switch for one in pulled(spec)}
    plain = spec.having("training", expandable_segments=False)
    (one,) = (p for p in pulled(plain) if p.lever.switch == "expandable_segments")
    assert one.edit == "training.expandable_segments: false -> true"
    assert one.note.startswith("PYTORCH_ALLOC_CONF=expandable_segments:True")
    assert one.note.endswith("the same numbers")
