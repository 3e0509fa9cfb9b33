"""Open counts and batches: what else holds beside brute force."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import load_profile
from meshwright.deadline import Deadline
from meshwright.planner.options import Options
from meshwright.planner.solve import solve, without_answer
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import Choice
from meshwright.spec.open_spec import OpenSpec
from meshwright.sweeps.open_choices import (
    PreparedChoice,
    _outcome,
    choose,
    open_choices,
    solve_open,
)
from tests.helpers.open_oracle import WalkedChoice
from tests.planner.test_brute_force import ORACLE

OFF = 1e-5
"""Share of a step time that rounding to ticks may move a comparison of choices."""

SMALL: dict[str, Any] = {
    "model": "gpt-1.3b",
    "cluster": {"topology": "dgx-a100", "count": [1, 2, 3, 4]},
    "training": {"seq_len": 2048, "global_batch": [24, 32, 36]},
    "pins": {"recompute": "none", "tp": {"max": 2}},
    "run": {"gpu_hour_price": 2},
}


def open_spec(**changes: Any) -> OpenSpec:
    """Return a small spec with open machines and sequences."""
    question = mw.load({**SMALL, **changes})
    assert isinstance(question, OpenSpec)
    return question


def chosen(outcome: Outcome) -> Choice:
    """Return the choice that was made."""
    assert outcome.open is not None
    assert outcome.open.chosen is not None
    return outcome.open.chosen


@cache
def fixed_choices() -> list[WalkedChoice]:
    """Return the choices of the small spec, each solved on its terms alone."""
    return [
        WalkedChoice(choice, found.step_s)
        for choice in open_spec(objective="step_s").choices
        if (found := solve(choice).best) is not None
    ]


@pytest.mark.parametrize(
    "objective",
    ["step_s", "usd_per_mtoken", "train_days", ["gpus", "step_s"]],
)
def test_an_open_number_is_never_worse_than_a_fixed_one(objective: Any) -> None:
    question = open_spec(objective=objective)
    outcome = solve_open(question)
    assert outcome.status == "optimal"
    metric = objective if isinstance(objective, str) else objective[0]
    assert outcome.best is not None
    walked_choice = WalkedChoice(
        question.choices[chosen(outcome).number], outcome.best.step_s
    )
    least = min(other.value(metric) for other in fixed_choices())
    assert walked_choice.value(metric) <= least * (1 + OFF)


@settings(ORACLE, max_examples=5)
@given(st.sets(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=2))
def test_more_to_choose_from_is_never_worse(counts: set[int]) -> None:
    assert paid(1, 2, 3, 4) <= paid(*sorted(counts)) * (1 + OFF)


@cache
def paid(*counts: int) -> float:
    """Return the GPU seconds of a sequence on the best of some counts of machines."""
    few = {"topology": "dgx-a100", "count": [*counts]}
    outcome = solve_open(open_spec(objective="usd_per_mtoken", cluster=few))
    assert outcome.best is not None
    found = chosen(outcome)
    return found.gpus * outcome.best.step_s / found.global_batch


def test_the_answer_is_that_of_the_spec_with_the_numbers_chosen() -> None:
    question = open_spec(objective=[{"usd_per_mtoken": "2%"}, "simplest"])
    outcome = mw.solve(question, by_kind=False)
    fixed = mw.solve(question.choices[chosen(outcome).number], by_kind=False)
    assert outcome.best == fixed.best
    assert outcome.fastest == fixed.fastest
    assert outcome.certificate == fixed.certificate


def test_the_answer_is_that_of_the_best_choice_whichever_was_solved_last() -> None:
    few = {"topology": "dgx-a100", "count": [1, 2]}
    question = open_spec(objective="step_s", cluster=few, pins={"tp": 1, "vpp": 1})
    found = choose(question, Options(), Deadline())
    assert found.best is not None
    told = _outcome(found, Options(is_brief=True))
    other = next(choice for choice in found.choices if choice is not found.best)
    found.search.last = PreparedChoice(other, found.search._prepared(other))
    assert _outcome(found, Options(is_brief=True)) == told
    # Skeletons that were not even listed count as bounded where the time is up then.
    assert found.best.outcome is not None
    assert found.best.outcome.certificate is not None
    assert told.certificate is not None
    counts = found.best.outcome.certificate.counts
    assert counts.skeletons == told.certificate.counts.skeletons
    assert counts.no_memory + counts.bounded + counts.survivors == counts.skeletons
    assert counts.bounded > 0


def test_few_choices_are_solved_where_bounds_close_the_others() -> None:
    counts = {"topology": "dgx-a100", "count": {"min": 1, "max": 16}}
    outcome = solve_open(open_spec(cluster=counts, objective="step_s"))
    assert outcome.open is not None
    closed = outcome.open.closed
    assert closed.solved + closed.bounded + closed.none_fits == 48
    assert closed.solved <= 8


@pytest.mark.parametrize(
    ("least_s", "most_s", "is_alive"),
    [(1.0, 1.0, True), (2.0, 1.0, False), (1.0, inf, True), (inf, inf, False)],
)
def test_choices_slower_than_the_levels_before_allow_are_closed(
    least_s: float, most_s: float, is_alive: bool
) -> None:
    choice, *_ = open_choices(open_spec().choices, load_profile(DEFAULT_PROFILE))
    bounded = replace(choice, least_s=least_s, most_s=most_s)
    assert bounded.is_alive is is_alive
    assert replace(bounded, step_s=3.0).is_alive is (most_s == inf)


def test_the_smallest_cluster_that_holds_a_model_is_found() -> None:
    question = open_spec(
        model="llama3-70b",
        objective=["gpus", "step_s"],
        pins={"zero": {"max": 1}, "offload": "none"},
    )
    outcome = solve_open(question)
    fits = [choice.cluster.gpus for choice in question.choices if solve(choice).best]
    assert chosen(outcome).gpus == min(fits)
    assert 1 < chosen(outcome).count < 4


def test_batches_are_compared_by_the_time_of_a_sequence() -> None:
    question = open_spec(cluster="dgx-a100", objective="step_s")
    outcome = solve_open(question)
    steps = {
        choice.training.global_batch: solve(choice).best for choice in question.choices
    }
    per_sequence = {n: best.step_s / n for n, best in steps.items() if best}
    assert chosen(outcome).global_batch == min(
        per_sequence, key=per_sequence.__getitem__
    )


def test_a_rule_on_the_speed_closes_clusters_that_are_too_small() -> None:
    loose = solve_open(open_spec(objective="usd_per_mtoken"))
    assert loose.best is not None
    wanted = 2.1 * loose.best.tokens_per_s_per_gpu * chosen(loose).gpus
    rules = [{"that": f"tokens_per_s >= {wanted:.0f}"}]
    tight = solve_open(open_spec(objective="usd_per_mtoken", rules=rules))
    assert tight.best is not None
    assert chosen(tight).gpus > chosen(loose).gpus
    assert tight.best.tokens_per_s_per_gpu * chosen(tight).gpus >= wanted * (1 - OFF)


def test_clusters_of_unlike_machines_are_compared_by_price() -> None:
    def machine(name: str, gpu: str, usd: float) -> dict[str, Any]:
        priced = {"preset": gpu, "hour_usd": usd}
        return {"topology": {"preset": name, "gpu": priced}, "count": [1, 2]}

    def best_machine(usd: float) -> str:
        choices = [
            machine("dgx-a100", "A100-SXM-80GB", 1.0),
            machine("dgx-h100", "H100-SXM-80GB", usd),
        ]
        question = open_spec(
            cluster={"choices": choices}, objective="usd_per_mtoken", run={}
        )
        return chosen(solve_open(question)).machine

    assert best_machine(1.1) == "dgx-h100"
    assert best_machine(9.0) == "dgx-a100"


def test_what_time_ran_out_on_is_told() -> None:
    outcome = solve_open(open_spec(objective="step_s"), Options(time_limit_s=0.0))
    assert outcome.status in ("feasible", "unknown")
    assert outcome.open is not None
    assert outcome.open.closed.undecided > 0


def test_the_answer_comes_back_from_its_json() -> None:
    outcome = mw.solve(open_spec(objective="step_s"), by_kind=False)
    again = mw.Outcome.from_json(outcome.to_json())
    assert again.open == outcome.open
    assert again.to_dict() == outcome.to_dict()


def test_choices_are_compared_by_the_step_that_recommends_plans() -> None:
    """Seven machines are cheapest with a plan that is beyond what was run."""
    asked = {
        "model": "llama3-70b",
        "cluster": {"topology": "dgx-a100", "count": [6, 7]},
        "training": {"seq_len": 4096, "global_batch": [60, 120]},
        "framework": "megatron",
    }
    fastest = mw.solve(open_spec(**asked, objective="usd_per_mtoken", pins={}))
    surest = mw.solve(open_spec(**asked, objective="cost", pins={}))
    assert (chosen(fastest).count, chosen(surest).count) == (7, 6)
    assert chosen(fastest).doubted_s is None
    assert surest.open is not None
    alone = {
        choice.number: mw.solve(spec, by_kind=False, safety=False).best
        for choice, spec in zip(
            surest.open.choices, open_spec(**asked, pins={}).choices, strict=True
        )
    }
    costs = {
        choice.number: choice.gpus * best.doubted_s / choice.global_batch
        for choice in surest.open.choices
        if (best := alone[choice.number])
    }
    assert costs[chosen(surest).number] == min(costs.values())
    assert surest.best == alone[chosen(surest).number]


def test_an_answer_stopped_while_comparing_bounds_its_step() -> None:
    """What is known of doubted steps then is no bound on steps."""
    question = open_spec(objective=[{"step_s": "2%"}, "simplest"])
    options = Options(tolerance=0.02, profile=load_profile(DEFAULT_PROFILE))
    outcome = solve_open(question, options)
    assert outcome.best is not None
    stopped = without_answer(
        solve(
            question.choices[chosen(outcome).number],
            replace(options, is_brief=True, is_doubted=True),
        ),
        least_s=outcome.best.step_s / 2,
    )
    assert stopped.certificate is not None
    assert stopped.status == "feasible"
    assert (stopped.certificate.gap, stopped.certificate.is_of_doubted) == (0.5, False)
