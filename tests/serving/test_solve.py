"""The best deployment: against brute force, under limits, pins and objectives.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import meshwright as mw
from meshwright.planner.options import Options
from meshwright.results.serving import PricedServing, ServingOutcome
from meshwright.serving.explain import explain_serving
from meshwright.serving.solve import solve_serving
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import ServingSpec
from tests.helpers.extent import gate
from tests.helpers.serving_oracle import brute_force
from tests.helpers.serving_specs import MIB, TINY, questions, serving_spec

KIB = MIB / 1024
UNPRUNED = Options(is_pruning=False)


def best_of(outcome: ServingOutcome) -> PricedServing:
    assert outcome.best is not None
    return outcome.best


@pytest.mark.slow
@settings(
    max_examples=gate(20, everything=60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(question=questions())
def test_the_solver_agrees_with_brute_force(question: dict[str, Any]) -> None:
    least_s = brute_force(serving_spec(**question))
    # Memory is rounded to kibibytes, capacity down and parts up.
    limits = {"memory_gib": question["limits"]["memory_gib"] - 32 * KIB}
    safe_s = brute_force(serving_spec(**question | {"limits": limits}))
    outcome = solve_serving(serving_spec(**question))
    best, certificate = outcome.best, outcome.certificate
    if best is None or certificate is None:
        assert safe_s == math.inf
        return
    assert outcome.status == "optimal"
    rounding_s = certificate.rounding_s
    assert least_s - rounding_s <= best.objective_s <= safe_s + rounding_s
    assert sum(best.objective_parts.values()) == pytest.approx(best.objective_s)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_bounds_leave_out_nothing_that_is_better(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the model has room for all, nor where bounds leave but a few."""
    limits = {"memory_gib": 2.3 + 6 * MIB}
    asked: dict[str, Any] = {"batch": 4, "prompt_len": 40, "output_len": 8}
    spec = serving_spec(TINY, gpus=(2, 2), limits=limits, objective=objective, **asked)
    pruned, whole = solve_serving(spec), solve_serving(spec, UNPRUNED)
    assert pruned.certificate is not None
    assert whole.certificate is not None
    assert pruned.certificate.counts == whole.certificate.counts
    assert best_of(pruned).plan == best_of(whole).plan
    monkeypatch.setattr("meshwright.serving.solve.MODEL_ROWS", 0)
    pruned = solve_serving(spec)
    assert pruned.certificate is not None
    assert pruned.certificate.counts.survivors < whole.certificate.counts.survivors
    assert best_of(pruned).plan == best_of(whole).plan


def test_without_time_there_is_a_plan_with_bound_and_gap() -> None:
    spec = serving_spec(TINY, gpus=(2, 2), batch=4, prompt_len=40, output_len=8)
    told = solve_serving(spec, Options(time_limit_s=0, is_pruning=False))
    assert told.status == "feasible"
    assert told.certificate is not None
    assert told.certificate.bound_s <= best_of(solve_serving(spec)).objective_s + 1e-6
    assert best_of(told).objective_s >= told.certificate.bound_s - 1e-6


def test_one_request_wants_tensors_and_many_on_slow_links_do_not() -> None:
    """PCIe: all-reduces of many tokens cost more than stages or replicas lose."""
    asked: dict[str, Any] = {"gpus": (2,), "gb_s": 15, "precision": "int8"}
    asked |= {"prompt_len": 1024, "output_len": 256}
    one = solve_serving(serving_spec(batch=1, **asked))
    assert best_of(one).plan.tp == 2
    many = solve_serving(serving_spec(batch=64, objective="throughput", **asked))
    assert best_of(many).plan.tp == 1


def test_stages_of_one_request_wait_for_each_other_and_groups_fill_them() -> None:
    asked: dict[str, Any] = {"gpus": (2,), "prompt_len": 256, "output_len": 64}
    one = best_of(solve_serving(serving_spec(batch=1, pins={"pp": 2}, **asked)))
    assert one.bubble == pytest.approx(0.5, abs=0.01)
    many = best_of(
        solve_serving(
            serving_spec(batch=16, pins={"pp": 2}, objective="throughput", **asked)
        )
    )
    assert many.plan.microbatches >= 2
    assert many.bubble < 0.1


def test_flips_are_where_the_order_turns() -> None:
    asked: dict[str, Any] = {"gpus": (2,), "prompt_len": 1024, "output_len": 64}
    asked |= {"gb_s": 15, "precision": "int8", "objective": "throughput"}
    spec = serving_spec(batch=1, **asked)
    outcome = solve_serving(spec, Options(is_by_kind=True))
    kinds = [flip.kind for flip in outcome.tp_against_pp]
    assert kinds[:2] == ["TP", "PP"]
    turn = outcome.tp_against_pp[1].batch

    def times(batch: int, **pins: int) -> float:
        found = serving_spec(batch=batch, pins=pins, **asked)
        return best_of(solve_serving(found)).objective_s

    assert times(turn, pp=2) < times(turn, tp=2)
    assert times(turn - 1, tp=2) <= times(turn - 1, pp=2)


def test_the_largest_batch_and_context_fit_and_one_more_does_not() -> None:
    spec = serving_spec(batch=2, pins={"tp": 1})
    most = solve_serving(spec).largest
    assert most is not None

    def fits(**changes: int) -> bool:
        found: dict[str, Any] = {"batch": 2, "pins": {"tp": 1}} | changes
        return solve_serving(serving_spec(**found)).best is not None

    assert fits(batch=most.batch)
    assert not fits(batch=most.batch + 1)
    assert fits(prompt_len=most.context - 512)
    assert not fits(prompt_len=most.context - 512 + 1)


def test_waits_are_limits() -> None:
    """What is best for tokens is too slow for users: they get another plan."""
    asked: dict[str, Any] = {"gpus": (4,), "batch": 64, "prompt_len": 512}
    asked |= {"output_len": 128, "objective": "throughput", "gb_s": 50.0}
    free = best_of(solve_serving(serving_spec(**asked)))
    quick = best_of(solve_serving(serving_spec(**asked | {"objective": "latency"})))
    slo = {"tpot_ms": (free.tpot_s + quick.tpot_s) / 2 * 1e3}
    bound = best_of(solve_serving(serving_spec(slo=slo, **asked)))
    assert bound.tpot_s * 1e3 <= slo["tpot_ms"]
    assert bound.tokens_per_s < free.tokens_per_s


def test_a_wait_that_no_plan_meets_is_the_reason() -> None:
    spec = serving_spec(gpus=(2,), slo={"ttft_ms": 1})
    outcome = solve_serving(spec)
    assert outcome.status == "infeasible"
    assert outcome.near_miss is not None
    assert {rule.rule for rule in outcome.near_miss.broken_rules} == {"ttft"}
    told = explain_serving(spec, None, Options())
    assert told.conflict is not None
    assert [rule.rule for rule in told.conflict.rules] == ["inference.slo.ttft_ms"]
    assert any("leave inference.slo.ttft_ms open" in r.edit for r in told.repairs)


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        ({"pp": 1, "layers": [3, 4]}, ["pp is 1", "layers is [3, 4]"]),
        ({"pp": 2, "mesh": {"tp": [2]}}, ["pp is 2", "mesh is {tp: [2]}"]),
    ],
)
def test_pins_that_clash_are_told_as_they_are_written(
    pins: dict[str, Any], told: list[str]
) -> None:
    """Both are needed: on two GPUs there are pp 1 and 2, and either split of them."""
    found = explain_serving(serving_spec(TINY, (2,), pins=pins), None, Options())
    assert found.conflict is not None
    assert [rule.sentence for rule in found.conflict.rules] == told
    assert {f"leave pins.{name} open" for name in pins} == {
        repair.edit for repair in found.repairs
    }


def test_repairs_are_solved_again_and_the_largest_that_has_room() -> None:
    """70e9 parameters in 16 bits do not fit 2 x 40 GiB; quantised they do."""
    spec = serving_spec("llama3-70b", gpus=(2,), batch=4, prompt_len=2048)
    told = explain_serving(spec, None, Options())
    assert not told.fits
    assert told.conflict is not None
    assert [rule.rule for rule in told.conflict.rules] == ["memory"]
    edits = [repair.edit for repair in told.repairs]
    assert "inference.precision: bf16 -> fp8" in edits
    assert all(
        stage.total_gib <= stage.usable_gib or "usable memory" in repair.edit
        for repair in told.repairs
        for stage in repair.best.stages
    )


def test_repairs_that_buy_machines_come_after_other_numbers_and_buy_the_fewest() -> (
    None
):
    """Eight times the machines answer soonest, and a cache in fp8 costs nothing."""
    fields = {
        "model": "llama3-70b",
        "cluster": {"topology": "dgx-a100", "count": 1},
        "inference": {"batch": 192, "prompt_len": 8192, "output_len": 512},
    }
    told = explain_serving(mw.load(fields, ServingSpec), None, Options())
    names = [repair.edit.split(":")[0] for repair in told.repairs]
    kinds = {one.edit.split(":")[0]: one.changes for one in told.repairs}
    assert kinds["cluster.count"] == "machines"
    assert kinds["inference.precision"] == "precision"
    assert names[0] == "inference.kv_precision"
    assert names.count("cluster.count") == 1
    assert names.index("cluster.count") > names.index("inference.precision")
    count = next(one.edit for one in told.repairs if "cluster.count" in one.edit)
    assert count == "cluster.count: 1 -> 2"
    assert set(names[-2:]) == {"inference.prompt_len", "inference.batch"}


def test_requests_are_not_lowered_to_a_number_that_only_many_groups_hold() -> None:
    """19 of 32 fit in 19 groups, each of which reads the weights: 18 tokens/s, not 179.

    The 18 that fit at once have 16 GB of weights in common for every token.
    """
    fields = {
        "model": "qwen2.5-32b",
        "cluster": {"gpu": "l40s-48gb", "count": 2},
        "inference": {"batch": 32, "prompt_len": 4096, "output_len": 512},
    }
    told = explain_serving(mw.load(fields, ServingSpec), None, Options())
    fewer = {
        name: repair.best
        for repair in told.repairs
        for name in ("batch", "prompt_len")
        if repair.edit.startswith(f"inference.{name}: ")
    }
    assert set(fewer) == {"batch", "prompt_len"}
    assert all(best.plan.microbatches <= best.plan.pp for best in fewer.values())
    assert fewer["batch"].tokens_per_s > 100


def test_the_gap_to_the_best_plan_adds_up_by_part() -> None:
    spec = serving_spec(gpus=(2,), batch=1, prompt_len=512)
    told = explain_serving(spec, Pins.model_validate({"pp": 2}), Options())
    assert told.fits
    assert told.best is not None
    found, best = best_of(told.outcome), best_of(told.best)
    assert best.plan.pp == 1
    expected_s = found.objective_s - best.objective_s
    assert sum(told.gap.values()) == pytest.approx(expected_s)
    assert expected_s > 0


def test_decoding_is_worth_bandwidth_and_prefill_the_peak() -> None:
    """A tenth more bandwidth is worth a tenth of a decoding, near enough, and so on."""
    asked: dict[str, Any] = {"batch": 1, "output_len": 2, "prompt_len": 4096}
    for changes, name in (
        ({"prompt_len": 16, "output_len": 512}, "memory bandwidth +10 %"),
        ({"prompt_len": 8192, "output_len": 1}, "matmul peak +10 %"),
    ):
        spec = serving_spec(**asked | changes)
        told = explain_serving(spec, None, Options())
        base = best_of(told.outcome).objective_s
        worth = {
            marginal_value.change: marginal_value.best
            for marginal_value in told.marginal_values
        }
        assert worth[name] is not None
        better = worth[name]
        assert better is not None
        assert base / better.objective_s == pytest.approx(1.1, abs=0.02)


def why(outcome: ServingOutcome, axis: str, degree: int) -> str:
    return next(
        one.because
        for one in outcome.degrees
        if (one.axis, one.degree) == (axis, degree)
    )


def test_what_sets_the_degrees_is_the_link_the_heads_or_the_room() -> None:
    """Slow links, six heads, small GPUs, a single request: each in its turn."""
    asked: dict[str, Any] = {"gpus": (4,), "batch": 32, "objective": "throughput"}
    slow = solve_serving(serving_spec(gb_s=5, prompt_len=512, **asked))
    assert best_of(slow).plan.tp < 4
    assert why(slow, "tp", 4).startswith("tensor links +")

    six = TINY | {"n_heads": 6, "n_kv_heads": 6, "d_model": 384, "d_ff": 768}
    heads = solve_serving(serving_spec(six, prompt_len=64, **asked))
    assert why(heads, "tp", 4) == "heads_divisible"

    # 16 GB of weights.
    room = {"gpu": {"memory_gib": 12}, "pins": {"pp": 1}, "prompt_len": 64}
    small = solve_serving(serving_spec(**asked | room))
    assert why(small, "tp", 1) == "memory"

    # A stage more reads no weight sooner.
    one = solve_serving(serving_spec(**asked | {"batch": 1, "objective": "latency"}))
    assert why(one, "pp", 4).startswith("weight matmuls +")


def test_pinned_layers_are_kept() -> None:
    pins = {"layers": [5, 2]}
    asked: dict[str, Any] = {"prompt_len": 64, "output_len": 8}
    best = best_of(solve_serving(serving_spec(TINY, gpus=(2,), pins=pins, **asked)))
    assert best.plan.layers == (5, 2)


@pytest.mark.parametrize(
    "better",
    [{"memory_gb_s": 1500}, {"peak_tflops": {"bf16": 150}}, {"memory_gib": 60}],
    ids=str,
)
def test_a_better_gpu_never_hurts(better: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"gpus": (4,), "batch": 32, "objective": "throughput"}
    base = best_of(solve_serving(serving_spec(**asked))).objective_s
    assert best_of(solve_serving(serving_spec(gpu=better, **asked))).objective_s <= base


def test_a_latent_cache_of_experts_is_served() -> None:
    spec = serving_spec("deepseek-v2-lite", gpus=(2,), batch=16, prompt_len=2048)
    best = best_of(solve_serving(spec))
    # 27 layers x (512 + 64) x 2 bytes x 2560 tokens x 16 requests, whole on each GPU.
    tokens = 16 * 2560 * 27 * (512 + 64) * 2
    cache = sum(stage.parts["cache"] for stage in best.stages) * 2**30
    assert cache == pytest.approx(tokens / best.plan.dp_replicate)
