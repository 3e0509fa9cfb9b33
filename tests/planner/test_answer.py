"""What an answer says beside its plan: its proof, its price, and how it was found."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.profile import load_profile
from meshwright.planner import solve as solving
from meshwright.planner.answer import ORDERS_OPEN, STOPPED, LatticeProof
from meshwright.planner.options import Options
from meshwright.planner.pipeline import LARGEST_HORIZON, Proof
from meshwright.planner.prove import NO_PLAN
from meshwright.planner.solve import solve
from meshwright.results.outcome import Rival

MEASURED = load_profile("measured")


def training(name: str, **pins: object) -> mw.Spec:
    return mw.load(name, mw.Spec, pins=pins)


def test_a_solve_says_what_it_does() -> None:
    told = list[str]()
    options = Options(near=0.05, is_safety=True, on_progress=told.append)
    solve(training("gpt-1.3b-2xa100-pcie"), options)
    assert [re.sub(r"[\d,]+", "N", one) for one in told] == [
        "listing the legal plans",
        "proving among N plans",
        "proving which plans are near the fastest",
        "comparing risks of running out of memory",
        "N of N groups of plans to bound",
        "proving among N plans",
    ]


def test_arrangements_of_unlike_parts_are_named_as_they_are_solved() -> None:
    told = list[str]()
    solve(training("gpt2-xl-2x3090-2x4090"), Options(on_progress=told.append))
    ways = [one for one in told if not re.match(r"[\d,]+ of|proving", one)]
    assert len(ways) == 5
    assert ways[0].startswith("runs on 1 x rtx-4090-pcie-2 alone")
    assert ways[-1].startswith("puts pipeline stages on")


@pytest.mark.parametrize("pins", [{"tp": 2, "pp": 1}, {"cp": 4}])
def test_the_proof_of_a_doubted_solve_is_on_doubted_steps(pins: Any) -> None:
    spec = training("llama2-13b-8xa100", **pins)
    options = Options(is_brief=True, is_doubted=True, profile=MEASURED)
    outcome = solve(spec, options)
    assert outcome.best is not None
    assert outcome.certificate is not None
    assert outcome.best.doubted_s > outcome.best.step_s
    assert outcome.certificate.is_of_doubted
    assert outcome.certificate.gap == 0
    assert outcome.certificate.bound_s == pytest.approx(outcome.best.doubted_s)
    assert outcome.certificate.doubt == spec_doubt(spec)


def spec_doubt(spec: mw.Spec) -> float:
    """Return the share of a step that a decision beyond known runs is doubted by."""
    return MEASURED.applied_to(spec).run_before.share


def test_a_simpler_plan_says_what_it_loses_to_the_fastest() -> None:
    options = Options(tolerance=0.05, profile=MEASURED)
    outcome = solve(training("llama2-13b-8xa100"), options)
    assert outcome.best is not None
    assert outcome.fastest is not None
    told = outcome.simplicity
    assert told is not None
    assert told.loss == outcome.best.step_s / outcome.fastest.step_s - 1 > 0.03
    assert told.criterion == "beyond_runs"
    assert told.techniques == ("ZeRO-2 or 3",)
    assert told.fastest_techniques == ("tensor parallelism", "ZeRO-2 or 3")


@pytest.mark.parametrize("is_doubted", [False, True])
def test_no_plan_above_a_known_step_is_an_answer(is_doubted: bool) -> None:
    """Where a plan is known that takes as long, the one that is found is as good."""
    spec = training("llama2-13b-8xa100", tp=2, pp=1)
    options = Options(is_brief=True, is_doubted=is_doubted, profile=MEASURED)
    best = solve(spec, options).best
    assert best is not None
    takes_s = best.doubted_s if is_doubted else best.step_s
    for share, status in ((1.001, "optimal"), (0.999, "infeasible")):
        known = Options(
            is_brief=True,
            is_doubted=is_doubted,
            profile=MEASURED,
            known_s=takes_s * share,
        )
        outcome = solve(spec, known)
        assert outcome.status == status
        assert outcome.best == (best if status == "optimal" else None)
        assert outcome.near_miss is None


def proof_with(*, has_passed: bool, is_spent: bool, has_choice: bool) -> Any:
    """Return a proof that was left open, as far as its sentence looks at it."""
    limits = SimpleNamespace(max_link_utilisation=0.5)
    return SimpleNamespace(
        deadline=SimpleNamespace(has_passed=has_passed),
        _effort=SimpleNamespace(is_spent=is_spent, left_open=lambda _: "by rules"),
        lattice=SimpleNamespace(table=SimpleNamespace(has_choice=has_choice)),
        job=SimpleNamespace(spec=SimpleNamespace(limits=limits, title="a spec")),
    )


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ((True, True, True), STOPPED),
        ((False, True, True), "by rules"),
        ((False, False, True), ORDERS_OPEN),
        ((False, False, False), "Its effort was spent before all plans were proven "
         "slower."),
    ],
)  # fmt: skip
def test_what_is_left_open_says_why(own: tuple[bool, bool, bool], told: str) -> None:
    passed, spent, choice = own
    left = proof_with(has_passed=passed, is_spent=spent, has_choice=choice)
    assert LatticeProof._left_open(left) == told
    free = proof_with(has_passed=False, is_spent=False, has_choice=True)
    free.job.spec.limits.max_link_utilisation = None
    assert LatticeProof._left_open(free).startswith("Its effort")


@pytest.mark.parametrize("more", [0, 1])
def test_steps_of_days_are_refused_where_no_plan_is_shorter(more: int) -> None:
    left = proof_with(has_passed=False, is_spent=False, has_choice=False)
    floor = LARGEST_HORIZON + np.array([more, 5])
    rows: Any = SimpleNamespace(floor=floor)
    if not more:
        LatticeProof._refuse_endless(left, rows)
        return
    with pytest.raises(mw.SpecError, match=r"a spec: every plan takes more than 3\.3"):
        LatticeProof._refuse_endless(left, rows)


@pytest.mark.parametrize("kept", [(), ("rival",), ("rival", "runner_up")])
def test_plans_beside_the_best_keep_the_limit_on_links(
    kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = solve(training("gpt-1.3b-2xh100-nvlink"), Options(profile=MEASURED))
    runner_up = outcome.runner_up
    assert runner_up is not None
    rival = Rival(plan=runner_up.plan.model_copy(update={"zero": 3}), schedule_s=1.0)
    both: dict[str, Any] = {"rival": rival, "runner_up": runner_up}
    plans = [both[name].plan for name in kept]
    monkeypatch.setattr(solving, "_keeps", lambda _, plan: plan in plans)
    job: Any = None
    told = solving._within_limit(job, outcome.model_copy(update={"rival": rival}))
    assert (told.rival, told.runner_up) == tuple(
        both[name] if name in kept else None for name in both
    )
    alone = outcome.model_copy(update={"rival": None, "runner_up": None})
    assert solving._within_limit(job, alone) == alone


@pytest.mark.parametrize("has_plan", [True, False])
def test_without_a_simplest_plan_the_cheapest_is_recommended(has_plan: bool) -> None:
    cheapest = Proof("optimal", ((1, 0),), 7, 7.0, 0)
    simplest = Proof("optimal", ((2, 0),), 7, 7.0, 1) if has_plan else NO_PLAN
    priced: dict[int, Any] = {
        0: SimpleNamespace(plan=5, doubted_s=1.0),
        1: SimpleNamespace(plan=3, doubted_s=1.5),
    }
    fastest: Any = SimpleNamespace(plan=4, doubted_s=2.0)
    plans: Any = SimpleNamespace(
        search=SimpleNamespace(
            price=lambda proof: proof.ticks * 100,
            simplest=lambda _, most: (simplest, most == 714),
        ),
        checked=lambda proof: priced[proof.row],
    )
    objective = SimpleNamespace(criteria=("techniques",))
    result: Any = SimpleNamespace(
        _tolerance=0.02,
        job=SimpleNamespace(spec=SimpleNamespace(objective=objective)),
        _complexity=lambda plan: (plan,),
    )
    found, is_proven = LatticeProof._recommended(result, plans, fastest, cheapest, 1e9)
    assert found is priced[1 if has_plan else 0]
    assert is_proven is has_plan
    for open_price, is_known in ((714.0, False), (715.0, has_plan)):
        told = LatticeProof._recommended(result, plans, fastest, cheapest, open_price)
        assert told == (found, is_known)
    # Neither simpler nor less doubted: the fastest stays.
    fastest.plan, fastest.doubted_s = 1, 0.5
    none, _ = LatticeProof._recommended(result, plans, fastest, cheapest, 1e9)
    assert none is None
    result._tolerance = 0.0
    told = LatticeProof._recommended(result, plans, fastest, cheapest, 1e9)
    assert told == (None, True)


MISSES: list[tuple[tuple[str, ...] | None, bool, str]] = [
    (("memory",), True, ""),
    ((), True, ""),
    (("memory", "world_size"), True, "world_size: so it is"),
    (("memory",), False, "none is legal"),
    (("world_size",), False, "world_size: so it is"),
    (None, False, "none is legal"),
]


@pytest.mark.parametrize(("broken", "has_plan", "told"), MISSES)
def test_a_plan_that_is_asked_for_may_lack_memory_and_nothing_else(
    broken: tuple[str, ...] | None,
    has_plan: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = [SimpleNamespace(rule=rule, sentence="so it is") for rule in broken or ()]
    miss = SimpleNamespace(broken_rules=rules, plan="a plan" if has_plan else None)
    outcome = SimpleNamespace(best=None, near_miss=None if broken is None else miss)
    monkeypatch.setattr(solving, "solve", lambda *_: outcome)
    spec: Any = None
    if not told:
        found: Any = solving.asked_plan(spec, Options())
        assert found == "a plan"
        return
    with pytest.raises(mw.SpecError, match=f"plan: {told}"):
        solving.asked_plan(spec, Options())
