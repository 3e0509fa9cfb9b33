"""The solver against brute force, on random small specs: more of them with `--all`."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings

from meshwright.check.check import broken_rules
from meshwright.cost.job import make_job
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.spec.spec import Spec
from tests.helpers.extent import gate
from tests.helpers.oracle import brute_force
from tests.helpers.strategies import (
    alternating_specs,
    expert_specs,
    finetuning_specs,
    specs,
)

EXAMPLES = gate(8, everything=25)

ORACLE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

UNPRUNED_S = gate(1.0, everything=5.0)
"""What CP-SAT gets for a lattice that no bound has thinned out; it may need hours."""


def compare(spec: Spec) -> None:
    """Compare the pruned and the unpruned solver with brute force."""
    best = brute_force(spec)
    pruned = solve(spec)
    unpruned = solve(spec, Options(is_pruning=False, time_limit_s=UNPRUNED_S))
    is_known = unpruned.status in ("optimal", "infeasible")
    assert not is_known or pruned.status == unpruned.status
    if math.isinf(best.step_s):
        assert pruned.status == "infeasible"
        assert pruned.near_miss is not None
        assert pruned.near_miss.broken_rules
        return
    assert pruned.status == "optimal"
    assert pruned.best is not None
    assert pruned.certificate is not None
    # The optimum in ticks and the one in floats are this far apart at most, twice.
    within = 2 * pruned.certificate.rounding_s
    assert pruned.best.step_s == pytest.approx(best.step_s, rel=0, abs=within)
    if is_known:
        assert unpruned.best is not None
        assert pruned.best.plan == unpruned.best.plan
    assert broken_rules(make_job(spec), pruned.best.plan) == []


@pytest.mark.slow
@ORACLE
@given(specs(most_layers=4))
def test_shallow_models_match_brute_force(spec: Spec) -> None:
    compare(spec)


@pytest.mark.slow
@ORACLE
@given(specs(most_layers=8))
def test_models_match_brute_force(spec: Spec) -> None:
    compare(spec)


@pytest.mark.slow
@ORACLE
@given(specs(most_layers=12))
def test_deep_models_match_brute_force(spec: Spec) -> None:
    compare(spec)


@pytest.mark.slow
@ORACLE
@given(expert_specs(most_layers=6))
def test_experts_match_brute_force(spec: Spec) -> None:
    compare(spec)


@pytest.mark.slow
@ORACLE
@given(finetuning_specs(most_layers=4))
def test_what_is_frozen_or_kept_elsewhere_matches_brute_force(spec: Spec) -> None:
    compare(spec)


@pytest.mark.slow
@ORACLE
@given(alternating_specs(most_layers=8))
def test_layers_of_several_kinds_match_brute_force(spec: Spec) -> None:
    compare(spec)


def test_step_times_are_read_from_the_solver_as_whole_numbers() -> None:
    """An objective that came back as 13038040.999... was once cut to 13038040."""
    levels = [
        {"name": "a", "size": 4, "gb_s": 10.0, "latency_us": 0.5},
        {"name": "b", "size": 2, "gb_s": 5.0, "latency_us": 0.5, "uplink": "shared"},
    ]
    gpu = {
        "memory_gib": 2.64449462890625,
        "memory_gb_s": 900.0,
        "peak_tflops": {"bf16": 70.0},
    }
    spec = {
        "model": {
            "n_layers": 6,
            "d_model": 384,
            "n_heads": 6,
            "n_kv_heads": 2,
            "d_ff": 768,
            "vocab": 50_000,
            "tied_embeddings": False,
            "learned_positions": 8_192,
        },
        "cluster": {"topology": {"gpu": gpu, "levels": levels}},
        "framework": "deepspeed",
        "training": {"seq_len": 256, "global_batch": 4},
        "limits": {"tp_min_link_gb_s": 20.0},
        "pins": {"pp": {"max": 6}},
    }
    compare(Spec.model_validate(spec))
