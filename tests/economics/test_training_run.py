"""The run around the step: days, money, failures, deadlines, what would help."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.check.check import check
from meshwright.cost.job import make_job
from meshwright.cost.state import state_bytes
from meshwright.cost.whole_model import total_params
from meshwright.economics.training_run import (
    GradientShape,
    bytes_share,
    daly_s,
    goodput,
    run_report,
    young_s,
)
from meshwright.loading.load import load_spec
from meshwright.planner.solve import solve
from meshwright.report.runs import run_sections
from meshwright.report.tables import Lines
from meshwright.results.comparison import LedgerEntry
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.training_run import RunReport
from meshwright.spec.cluster import Cluster, usd_per_hour, watts
from meshwright.spec.spec import Spec
from tests.helpers.command import SPEC, refusal, run
from tests.helpers.margin import with_margin

NAME = "llama3-70b-128xa100"


def priced(spec: Spec) -> PricedPlan:
    best = solve(spec).best
    assert best is not None
    return best


@pytest.fixture(scope="module")
def plan() -> PricedPlan:
    return priced(load_spec(NAME))


def report(plan: PricedPlan, name: str = NAME, **asked: Any) -> RunReport:
    """Return the run of a bundled spec on a plan of it."""
    data = load_spec(name).model_dump() | {"run": asked}
    return run_report(make_job(Spec.model_validate(data)), plan)


def test_days_and_money_follow_from_the_rate(plan: PricedPlan) -> None:
    """1e12 tokens at the plan's rate; 128 GPUs at 2 USD an hour."""
    answer = report(plan, tokens=1e12, gpu_hour_price=2.0)
    assert answer.cost_usd is not None
    seconds = 1e12 / (plan.tokens_per_s_per_gpu * 128)
    assert answer.ideal_days == answer.days == pytest.approx(seconds / 86_400)
    assert answer.gpu_hours == pytest.approx(seconds / 3_600 * 128)
    assert answer.cost_usd == pytest.approx(seconds / 3_600 * 128 * 2.0)
    assert answer.usd_per_mtoken == pytest.approx(answer.cost_usd / 1e6)
    # A step has 512 sequences of 4,096 tokens.
    assert answer.steps == pytest.approx(1e12 / (512 * 4_096))


def test_flops_by_rule_and_exactly(plan: PricedPlan) -> None:
    """6 x 70.55e9 x 1e12; exactly, more for attention, less for the table."""
    answer = report(plan, tokens=1e12)
    assert answer.flops_6nd == pytest.approx(6 * 70.554e9 * 1e12, rel=1e-3)
    assert answer.flops_exact is not None
    assert answer.flops_6nd is not None
    assert answer.steps is not None
    rate = answer.flops_exact / answer.steps / plan.step_s
    assert rate / (128 * 312e12) == pytest.approx(answer.mfu)
    assert answer.flops_exact == pytest.approx(answer.flops_6nd, rel=0.1)


def test_hfu_counts_what_is_recomputed() -> None:
    """All layers again: a third more of what layers take, which is nearly all."""
    pins = ["tp=8", "recompute=full", "recompute_layers=[40]"]
    best = priced(load_spec("llama2-13b-8xa100", pins))
    assert sum(stage.recompute_layers for stage in best.plan.stages) == 40
    answer = report(best, "llama2-13b-8xa100", tokens=1e12)
    # The head, 32,000 x 5,120 of 13.0e9 weights, is not recomputed.
    assert answer.hfu / answer.mfu == pytest.approx(1 + 1 / 3, rel=0.01)
    assert answer.hfu < answer.mfu * 4 / 3


def test_tokens_are_asked_for_paid_for_or_bound_by_time(plan: PricedPlan) -> None:
    paid = report(plan, budget_flops=6e23)
    assert paid.tokens == pytest.approx(6e23 / (6 * paid.active_params))
    timed = report(plan, deadline="2 weeks")
    rate = plan.tokens_per_s_per_gpu * 128
    assert timed.tokens == pytest.approx(rate * 14 * 86_400)
    assert timed.deadline is not None
    assert timed.deadline.is_met is True
    both = report(plan, tokens=5e9, budget_flops=6e23, deadline="2 weeks")
    assert both.tokens == 5e9
    assert both.chinchilla is not None
    assert both.chinchilla.budget_flops == 6e23


def test_a_deadline_is_met_or_missed(plan: PricedPlan) -> None:
    days = report(plan, tokens=1e12).days
    assert days is not None
    for factor, expected in ((1.001, True), (0.999, False)):
        answer = report(plan, tokens=1e12, deadline=days * factor).deadline
        assert answer is not None
        assert answer.is_met is expected
        assert answer.tokens == pytest.approx(1e12 * factor)
        assert answer.rate_needed == pytest.approx(1 / factor)


def test_young_of_a_minute_and_a_day() -> None:
    """sqrt(2 x 60 x 86,400) = 3,220 s."""
    assert young_s(60, 86_400) == pytest.approx(3_220, abs=0.5)


@pytest.mark.parametrize("stall_s", [0.1, 10.0, 100.0, 1_000.0])
def test_no_interval_is_better_than_dalys(stall_s: float) -> None:
    """Of all intervals, tried one by one, none leaves 0.01 % more useful time.

    Where a checkpoint takes a quarter of the time between failures, 0.2 %.
    """
    mtbf_s = 4_000.0
    tried = np.geomspace(1, 40_000, 4_000)
    best = max(goodput(float(answer), stall_s, 300, mtbf_s) for answer in tried)
    ours = goodput(daly_s(stall_s, mtbf_s), stall_s, 300, mtbf_s)
    assert ours >= best * (0.998 if stall_s == 1_000 else 0.9999)
    assert ours <= best * (1 + 1e-6)


def simulated(interval_s: float, stall_s: float, restart_s: float, m: float) -> float:
    """Return the useful share of the time of a run whose failures are drawn."""
    draw = random.Random(7)
    done, clock = 0, 0.0
    next_s = draw.expovariate(1 / m)
    while done < 20_000:
        needed_s = interval_s + stall_s
        if clock + needed_s <= next_s:
            clock, done = clock + needed_s, done + 1
            continue
        clock = next_s
        while True:  # A restart may fail too.
            next_s = clock + draw.expovariate(1 / m)
            if next_s > clock + restart_s:
                break
            clock = next_s
        clock += restart_s
    return done * interval_s / clock


@pytest.mark.parametrize("interval_s", [300.0, 1_000.0, 3_000.0])
def test_goodput_is_that_of_drawn_failures(interval_s: float) -> None:
    ours = goodput(interval_s, 30, 200, 5_000)
    assert ours == pytest.approx(simulated(interval_s, 30, 200, 5_000), rel=0.01)


def test_failures_of_a_run(plan: PricedPlan) -> None:
    """12,800 GPU hours over 128 GPUs: one failure in 100 hours.

    Weights and optimizer are 14 bytes a parameter, 2 + 12: written at 10 GB/s.
    """
    asked: dict[str, Any] = {"tokens": 1e12, "mtbf_gpu_hours": 12_800}
    how = {"gb_s": 10, "async": False, "restart_s": 100}
    answer = report(plan, **asked, checkpoint=how)
    failures = answer.failures
    assert failures is not None
    assert failures.mtbf_hours == 100
    assert failures.checkpoint_gb == pytest.approx(70.554 * 14, rel=1e-3)
    assert failures.write_s == failures.stall_s
    assert failures.write_s == pytest.approx(70.554 * 14 / 10, rel=1e-3)
    # Young: sqrt(2 x 98.8 x 360,000) = 8,433 s; Daly takes the checkpoint off it.
    assert failures.young_s == pytest.approx(8_433, rel=1e-3)
    assert failures.interval_s == pytest.approx(8_433 - 98.8, rel=0.01)
    assert failures.goodput is not None
    # Lost: 98.8 of 8,433 s, and at every failure half an interval and 199 s.
    lost = 98.8 / 8_433 + (8_433 / 2 + 199) / 360_000
    assert failures.goodput == pytest.approx(1 - lost, abs=0.001)
    assert answer.days is not None
    assert answer.ideal_days is not None
    assert answer.days * failures.goodput == pytest.approx(answer.ideal_days)
    assert failures.lost_days == pytest.approx(answer.days - answer.ideal_days)
    assert failures.expected == pytest.approx(answer.days * 24 / 100)


def test_asynchronous_checkpoints_stall_for_the_copy_alone(plan: PricedPlan) -> None:
    """1/128 of 988 GB over the 25 GB/s of a GPU's port: 0.31 s."""
    asked: dict[str, Any] = {"tokens": 1e12, "mtbf_gpu_hours": 12_800}
    late = report(plan, **asked, checkpoint={"gb_s": 10}).failures
    answer = report(plan, **asked, checkpoint={"gb_s": 10, "async": True}).failures
    assert answer is not None
    assert late is not None
    assert answer.stall_s == pytest.approx(987.76 / 128 / 25, rel=1e-3)
    assert answer.goodput is not None
    assert late.goodput is not None
    assert answer.goodput > late.goodput
    assert answer.interval_s is not None
    assert answer.write_s is not None
    assert answer.interval_s >= answer.write_s


@pytest.mark.parametrize(
    ("mtbf_gpu_hours", "how", "told"),
    [
        # 100 hours and 99 s to write: every 2.3 hours. Nothing else is to say.
        (12_800, {"gb_s": 10}, None),
        # The copy of 0.31 s and 1 hour: sqrt(2 x 0.31 x 3,600) = 47 s, and half of
        # the 99 s that storage takes.
        (
            128,
            {"gb_s": 10, "async": True},
            "Storage sets that, not failures: one takes 98.78 s to write, and failures "
            "ask for one every 46.94 s",
        ),
        # At 100 GB/s storage has one in 9.9 s: 9.9 / 47.2 = 21 % of the time. Useful
        # are 1 - 0.31 / 47 - 47 / 7,200 = 98.69 %, each failure's 620 s left aside,
        # and with 300 s between them 95.7 %;
        # Daly's exponentials make it 2.45 % apart.
        (
            128,
            {"gb_s": 100, "async": True},
            "Failures do ask for that: it would write 21% of the time, 75.3 TB an "
            "hour, and gain 2.45% of the time over one every 5 minutes",
        ),
        # 10 hours between failures: sqrt(2 x 0.31 x 36,000) = 149 s against 300 s,
        # which lose 149 / 36,000 = 0.41 % and 0.1 + 0.42 = 0.52 %.
        (
            1_280,
            {"gb_s": 100, "async": True},
            "Storage sets what is practical, not failures: it would write 7% of the "
            "time, 23.8 TB an hour, and gain 0.10% of the time over one every 5 "
            "minutes",
        ),
    ],
)
def test_what_sets_the_interval_between_checkpoints(
    plan: PricedPlan, mtbf_gpu_hours: float, how: dict[str, Any], told: str | None
) -> None:
    asked: dict[str, Any] = {"tokens": 1e12, "mtbf_gpu_hours": mtbf_gpu_hours}
    answer = report(plan, **asked, checkpoint=how)
    (section,) = [each for each in run_sections(answer) if isinstance(each, Lines)]
    assert [
        line for line in section.lines if "every 5" in line or "Storage sets" in line
    ] == ([told] if told else [])
    assert answer.failures is not None
    is_storage = told is not None and told.startswith("Storage")
    assert answer.failures.set_by == ("storage" if is_storage else "failures")


def test_without_checkpoints_failures_are_counted_alone(plan: PricedPlan) -> None:
    answer = report(plan, tokens=1e12, mtbf_gpu_hours=12_800)
    assert answer.failures is not None
    assert answer.failures.goodput is None
    assert answer.days == answer.ideal_days
    assert answer.failures.expected is not None


def test_a_run_that_always_fails_never_ends(plan: PricedPlan) -> None:
    how = {"gb_s": 0.001}
    answer = report(
        plan, tokens=1e12, mtbf_gpu_hours=1, checkpoint=how, gpu_hour_price=1
    )
    assert answer.failures is not None
    assert answer.failures.goodput == 0
    assert answer.days is answer.cost_usd is answer.usd_per_mtoken is None


def entry(operation: str, ranks: int) -> LedgerEntry:
    return LedgerEntry.model_validate(
        {
            "block": "layer", "where": "gradients", "phase": "step end", "part": "dp",
            "operation": operation, "group": "dp_shard", "ranks": ranks, "bytes": 1e9,
            "count_per_layer": 1, "count_per_step": 1, "link": "l", "seconds": 1.0,
            "exposed_s": 1.0,
        }
    )  # fmt: skip


def test_bytes_of_compressed_gradients() -> None:
    """Of 4 bytes: fp16 half, one bit 1/32, rank 4 of 4,096 wide 8/4,096.

    Top-k of 1 %, 8 bytes each from 16 ranks: 1.28 bytes a gradient reach every rank,
    in place of 4 on a ring's one way, 8 on its two.
    """
    setting = GradientShape(4, 4_096, 0.01, 4, zero=1)
    scatter, whole = entry("reduce_scatter", 16), entry("all_reduce", 16)
    assert bytes_share("fp16", scatter, setting) == 0.5
    assert bytes_share("1-bit", scatter, setting) == 1 / 32
    assert bytes_share("powersgd", scatter, setting) == 8 / 4_096
    assert bytes_share("top-k", scatter, setting) == pytest.approx(1.28 / 4)
    assert bytes_share("top-k", whole, setting) == pytest.approx(1.28 / 8)
    # Without ZeRO an all-reduce is told as its two halves.
    assert bytes_share("top-k", scatter, setting._replace(zero=0)) == pytest.approx(
        1.28 / 8
    )
    # Nothing is sent that is larger than what it stands for.
    assert bytes_share("fp16", scatter, setting._replace(reduced_bytes=2)) == 1
    assert bytes_share("top-k", entry("reduce_scatter", 512), setting) == 1


def test_fp16_gradients_take_what_a_spec_with_them_takes() -> None:
    """The same plan priced anew with 16-bit gradients, where the formulas meet."""
    pins = ["zero=0", "tp=8", "pp=2", "dp_shard=1", "micro_batch=1"]
    spec = with_margin(load_spec(NAME, pins))
    best = priced(spec)
    answer = report(best, tokens=1e12)
    fp16 = next(one for one in answer.compression if one.scheme == "fp16")
    data = spec.model_dump()
    data["training"]["gradients"] = "bf16"
    then = check(make_job(Spec.model_validate(data)), best.plan)
    job = make_job(spec)
    now = check(job, best.plan)
    saved_s = now.time_parts["dp"] - then.time_parts["dp"]
    ours = run_report(make_job(spec), now).compression[0]
    assert saved_s > 0
    assert now.step_s - ours.step_s + ours.encode_s == pytest.approx(saved_s, rel=0.01)
    assert fp16.saved_days is not None


def test_nothing_to_compress_without_replicas() -> None:
    best = priced(load_spec("llama2-13b-8xa100", ["tp=8"]))
    assert best.plan.dp_replicate * best.plan.dp_shard == 1
    assert report(best, "llama2-13b-8xa100", tokens=1e9).compression == ()


def test_all_wait_for_the_slowest(plan: PricedPlan) -> None:
    """One GPU 10 % slower; and 1 % of jitter, whose slowest of 128 is at 2.6 sigma."""
    answer = report(plan, tokens=1e12, straggler={"jitter": 0.01}).straggler
    compute = plan.time_parts["compute"] + plan.time_parts["recompute"]
    assert answer.one_slow_s == pytest.approx(0.1 * compute)
    draw = np.random.default_rng(3)
    slowest = draw.standard_normal((20_000, 128)).max(axis=1).mean()
    assert answer.jitter_s == pytest.approx(0.01 * compute * slowest, rel=0.01)


def test_unlike_gpus_are_priced_one_by_one() -> None:
    """8 GPUs at 3 USD and 700 W, and 8 at 2 USD and 400 W."""
    spec = load_spec("llama2-13b-8xh100-8xa100")
    data = spec.cluster.model_dump(exclude_unset=True)
    rates = ((3.0, 700), (2.0, 400))
    for part, (usd, tdp_w) in zip(data["parts"], rates, strict=True):
        part["topology"]["gpu"] |= {"hour_usd": usd, "tdp_w": tdp_w}
    cluster = Cluster.model_validate(data)
    assert usd_per_hour(cluster, None) == 8 * 3.0 + 8 * 2.0
    assert usd_per_hour(cluster, 1.0) == 16
    assert watts(cluster) == 8 * 700 + 8 * 400
    data["parts"][1]["topology"]["gpu"]["hour_usd"] = None
    data["parts"][1]["topology"]["gpu"]["tdp_w"] = None
    unknown = Cluster.model_validate(data)
    assert usd_per_hour(unknown, None) is watts(unknown) is None


def test_energy_is_that_of_the_power_limit(plan: PricedPlan) -> None:
    spec = load_spec(NAME).model_dump() | {"run": {"tokens": 1e12}}
    spec["cluster"]["topology"]["gpu"] |= {"tdp_w": 400, "hour_usd": 1.5}
    answer = run_report(make_job(Spec.model_validate(spec)), plan)
    assert answer.gpu_hours is not None
    assert answer.energy_mwh == pytest.approx(answer.gpu_hours * 400 / 1e6)
    assert answer.cost_usd == pytest.approx(answer.gpu_hours * 1.5)


def test_state_and_the_fewest_gpus_that_hold_it(plan: PricedPlan) -> None:
    answer, spec = report(plan, tokens=1e12), load_spec(NAME)
    state = state_bytes(spec).total * total_params(spec.model)
    assert answer.state_gb == state / 1e9
    assert answer.least_gpus == math.ceil(state / (spec.usable_gib * 2**30))


def test_the_run_is_part_of_the_answer() -> None:
    name = "mpt-30b-512xh100-90days"
    result = run("solve", name, "--format", "json")
    data = json.loads(result.stdout)
    answer = RunReport.model_validate(data["run"])
    assert answer.mfu == data["mfu"]
    assert answer.days is not None
    assert answer.cost_usd == pytest.approx(answer.days * 24 * 512 * 2.5)
    for form in ("table", "markdown"):
        text = run("solve", name, "--format", form, "-v").stdout
        for piece in (
            "The run",
            "Goodput",
            "Compute-optimal",
            "Jitter",
            "Compressed gradients",
        ):
            assert piece in text


def test_a_spec_without_a_run_has_none() -> None:
    result = run("solve", "llama3-8b-2xh100-nvlink", "--format", "json")
    assert "run" not in json.loads(result.stdout)
    assert "The run" not in run("solve", "llama3-8b-2xh100-nvlink").stdout


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{tokens: 0}", "run.tokens: 0: expected a number from 1 to 1e18"),
        ("{tokens: 1.5Z}", "run.tokens: '1.5Z': expected a number"),
        ("{budget_flops: 5}", "run.budget_flops: 5: expected a number from 1e12"),
        ("{deadline: 90 fortnights}", "run.deadline: '90 fortnights': unknown unit"),
        ("{deadline: -3}", "run.deadline: -3: expected a number from 0.001"),
        ("{mtbf_gpu_hours: 0}", "run.mtbf_gpu_hours: 0: expected a number from 1"),
        ("{checkpoint: {async: true}}", "run.checkpoint.gb_s: missing"),
        ("{checkpoint: {gb_s: 1, async: 1}}", "run.checkpoint.async: 1: expected true"),
        ("{checkpoint: {gb_s: 1, asinc: true}}", "did you mean async?"),
        ("{straggler: {jitter: 2}}", "run.straggler.jitter: 2: expected a number"),
        ("{token: 5}", "run.token: unknown field"),
        ("[5]", "run"),
    ],
)
def test_a_wrong_run_is_refused_by_line(
    tmp_path: Path, written: str, message: str
) -> None:
    (tmp_path / "own.yaml").write_text(f"{SPEC}run: {written}\n")
    told = refusal(str(tmp_path / "own.yaml"))
    assert message in told
    assert f"own.yaml:{len(SPEC.splitlines()) + 1}" in told
