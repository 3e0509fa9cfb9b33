"""The simplest plan within a tolerance, and all plans near the fastest."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.cost import profile as cost_profile
from meshwright.cost.profile import Profile, load_profile
from meshwright.deadline import NEVER
from meshwright.loading.load import load_spec
from meshwright.planner import answer
from meshwright.planner.model import ENDLESS_TICKS, Demand
from meshwright.planner.options import Options
from meshwright.planner.pipeline import Proof
from meshwright.planner.solve import solve
from meshwright.plans.simplicity import complexity
from meshwright.results.outcome import Outcome
from meshwright.spec.goals import CRITERIA
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.run_before import PlanOfMaker, RunBefore
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.simplicity_oracle import DECISIONS, Everything, everything
from tests.helpers.strategies import known_runs, published_plans, specs
from tests.planner.test_brute_force import ORACLE

TOLERANCES = st.sampled_from([0.005, 0.02, 0.05, 0.2])

TINY = 1e-6
"""Share of a step time that rounding to ticks may move the end of a tolerance."""

ANY = ",recompute_layers=any"
"""What the text of a plan says of its split of layers."""


def compare(spec: Spec, tolerance: float, profile: Profile | None = None) -> None:
    """Compare the simplest plan and the near set with brute force."""
    profile = profile or Profile()
    every = everything(profile.applied_to(spec))
    outcome = solve(spec, Options(tolerance=tolerance, near=tolerance, profile=profile))
    if outcome.best is None:
        assert every.fastest_s == float("inf")
        return
    assert outcome.optimum is not None
    assert outcome.certificate is not None
    assert outcome.certificate.is_simplest
    off_s = 2 * outcome.certificate.rounding_s + TINY * every.fastest_s
    assert outcome.optimum.step_s == pytest.approx(every.fastest_s, rel=0, abs=off_s)
    most_s = every.least_doubted_s * (1 + tolerance)
    _compare_simplest(profile.applied_to(spec), outcome, every, most_s, off_s)
    _compare_near(outcome, every, every.fastest_s * (1 + tolerance), off_s)


def _compare_simplest(
    spec: Spec, outcome: Outcome, every: Everything, most_s: float, off_s: float
) -> None:
    assert outcome.best is not None
    found = complexity(spec, outcome.best.plan, CRITERIA)
    less, _ = every.simplest(most_s + off_s)
    more, fastest_s = every.simplest(most_s - off_s)
    assert less <= found <= more
    if less == more:
        assert outcome.best.doubted_s == pytest.approx(fastest_s, rel=0, abs=off_s)


def _compare_near(
    outcome: Outcome, every: Everything, most_s: float, off_s: float
) -> None:
    near = outcome.near
    assert near is not None
    assert near.is_proven
    assert len({plan.plan for plan in near.plans}) == near.count
    low, high = every.near(most_s - off_s), every.near(most_s + off_s)
    assert len(low) <= near.count <= len(high)
    for index, name in enumerate(DECISIONS):
        (found,) = (decision for decision in near.decisions if decision.name == name)
        assert len({key[index] for key in low}) <= len(found.values)
        assert len(found.values) <= len({key[index] for key in high})
        assert sum(value.plans for value in found.values) == near.count
        fastest_with = every.fastest_with(name)
        for value in found.values:
            least_s = fastest_with[FIELD[name].encoded(value.value)]
            takes_s = every.fastest_s * (1 + value.loss)
            assert takes_s == pytest.approx(least_s, rel=0, abs=off_s)


@pytest.mark.slow
@ORACLE
@given(specs(most_layers=4), TOLERANCES)
def test_shallow_models_match_brute_force(spec: Spec, tolerance: float) -> None:
    assume(spec.limits.max_link_utilisation is None)
    compare(spec, tolerance)


@pytest.mark.slow
@ORACLE
@given(specs(most_layers=8), TOLERANCES)
def test_models_match_brute_force(spec: Spec, tolerance: float) -> None:
    assume(spec.limits.max_link_utilisation is None)
    compare(spec, tolerance)


@pytest.mark.slow
@ORACLE
@given(specs(most_layers=5), TOLERANCES, known_runs(), published_plans(), st.booleans())
def test_doubted_plans_match_brute_force(
    spec: Spec,
    tolerance: float,
    known: RunBefore,
    published: PlanOfMaker,
    is_same_job: bool,
) -> None:
    """The recommended plan is the simplest near the least doubted step."""
    assume(spec.limits.max_link_utilisation is None)
    if is_same_job:
        gpus, batch = spec.cluster.gpus, spec.training.global_batch
        published = published.model_copy(
            update={"gpus": 2 * gpus, "global_batch": 4 * batch}
        )
    profile = Profile(
        run_before={spec.framework: known.combinations},
        doubt=known.per_decision,
        names_published=True,
    )
    with patch.object(cost_profile, "nearest_published", lambda *_: published):
        compare(spec, tolerance, profile)


@settings(
    max_examples=gate(4, everything=10),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)
@given(specs(most_layers=8))
def test_laws_of_tolerances(spec: Spec) -> None:
    """Without a tolerance the fastest plan wins; more is never less simple."""
    fastest = solve(spec)
    assume(fastest.best is not None)
    assert fastest.best is not None
    assert fastest.fastest is None
    simplest = complexity(spec, fastest.best.plan, CRITERIA)
    for tolerance in (0.01, 0.1):
        outcome = solve(spec, Options(tolerance=tolerance, near=tolerance))
        assert outcome.best is not None
        assert outcome.optimum == fastest.best
        assert outcome.best.step_s <= fastest.best.step_s * (1 + tolerance + TINY)
        found = complexity(spec, outcome.best.plan, CRITERIA)
        assert found <= simplest
        simplest = found
        assert outcome.near is not None
        texts = {
            plan.plan.replace(",recompute_layers=any", "")
            for plan in outcome.near.plans
        }
        for plan in (outcome.best.plan, fastest.best.plan):
            assert str(plan).replace(",recompute_layers=any", "") in texts


UNEVEN: dict[str, Any] = {
    "model": {
        "n_layers": 7,
        "d_model": 768,
        "n_heads": 12,
        "n_kv_heads": 12,
        "d_ff": 1536,
        "vocab": 512,
        "gated_mlp": False,
        "moe": {"n_experts": 4, "top_k": 2, "d_ff": 768},
    },
    "cluster": {
        "topology": {
            "gpu": {
                "memory_gib": 5.069,
                "memory_gb_s": 900,
                "peak_tflops": {"bf16": 17.5, "fp16": 17.5, "fp32": 17.5},
            },
            "levels": [{"name": "host", "size": 2, "gb_s": 10, "latency_us": 0.5}],
        }
    },
    "framework": "megatron",
    "training": {"seq_len": 256, "global_batch": 2, "precision": "bf16"},
    "limits": {"max_link_utilisation": 0.05},
    "pins": {"cp": 1, "ep": 1, "vpp": 1, "schedule": "1f1b", "recompute": "none"},
}
"""A spec whose fastest plan has another split of layers than the constructed one."""


def test_the_first_near_plan_is_the_fastest_and_takes_its_step() -> None:
    spec = load_spec(UNEVEN)
    every = everything(spec)
    outcome = solve(spec, Options(near=0.02))
    assert outcome.best is not None
    assert outcome.near is not None
    assert outcome.near.plans[0].step_s == outcome.best.step_s
    assert outcome.near.plans[0].plan == str(outcome.best.plan)
    assert min(value.loss for value in outcome.near.decisions[0].values) == 0
    _compare_near(outcome, every, every.fastest_s * 1.02, TINY * every.fastest_s)


def test_the_nearest_miss_of_a_limit_on_links_is_the_fastest_plan() -> None:
    spec = load_spec("llama2-13b-8xa100")
    limits = spec.limits.model_copy(update={"max_link_utilisation": 1e-4})
    limited = solve(spec.model_copy(update={"limits": limits}), Options())
    fastest = solve(spec, Options()).best
    assert fastest is not None
    assert limited.near_miss is not None
    told = limited.near_miss.description.split(",")
    assert {*told} <= {*str(fastest.plan).split(",")}


def test_a_brief_solve_looks_for_no_simpler_plan() -> None:
    spec = load_spec("llama2-13b-8xa100")
    options = Options(tolerance=0.05, profile=load_profile("measured"))
    whole, brief = solve(spec, options), solve(spec, replace(options, is_brief=True))
    assert whole.fastest is not None
    assert brief.best == whole.fastest
    assert brief.certificate is not None
    assert whole.certificate is not None
    assert brief.certificate.doubt == 0 < whole.certificate.doubt


def near_on_meshes(random: Random) -> tuple[bool, bool]:
    """Return whether a skeleton is near on no mesh, and whether that is known.

    Some meshes have no split, some none below their limit, and some stay open.
    """
    lower = np.array([random.randint(5, 12) for _ in range(4)])
    ticks = [int(bound) + random.randint(0, 4) for bound in lower]
    upper = np.array([most + random.choice([0, 3, ENDLESS_TICKS]) for most in ticks])
    ends = [random.choice(["proven"] * 7 + ["open", "none"]) for _ in ticks]
    ends = [
        "proven" if end == "none" and has < ENDLESS_TICKS else end
        for end, has in zip(ends, upper.tolist(), strict=True)
    ]

    known = {row for row in range(4) if random.random() < 0.3}

    def prove(row: int, _demand: Demand, below: int) -> Proof:
        if ends[row] == "none":
            return Proof("infeasible", (), 0, inf)
        if ends[row] == "open":
            return Proof("unknown", (), 0, float(lower[row]))
        # What is proven already comes back whatever is asked.
        if ticks[row] >= below and row not in known:
            return Proof("slower", (), 0, below)
        return Proof("optimal", (), ticks[row], ticks[row])

    plans: Any = SimpleNamespace(
        search=SimpleNamespace(upper=upper, least=lower, prove=prove),
        deadline=NEVER,
        constructed=lambda _row: (),
        plan=lambda row, _split: row,
        unique=lambda _row, _demand, proof: proof,
    )
    most = random.randint(4, 14)
    best, is_known = answer._within(plans, np.arange(4), most)
    proven = [n for n, end in zip(ticks, ends, strict=True) if end == "proven"]
    least = min([*proven, int(upper.min()), most + 1])
    assert (best.ticks if best else most + 1) == least
    plan: Any = best and best.plan
    assert plan == (best and best.row)
    assert is_known or (lower <= most)[[end == "open" for end in ends]].any()
    return best is None, is_known


def test_a_skeleton_is_near_by_its_best_mesh_that_is_proven() -> None:
    found = {near_on_meshes(Random(seed)) for seed in range(300)}
    assert found == {(True, True), (True, False), (False, True)}
