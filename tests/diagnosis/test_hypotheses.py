"""Faults that were planted into logs are found, with probabilities that add up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.diagnose import Planted, log_of, planted, rank
from scipy.stats import multivariate_normal, norm

from meshwright.check.check import check
from meshwright.cost.profile import Profile, load_profile
from meshwright.diagnosis.faults import Case, Run, faults, slower_links
from meshwright.diagnosis.hypotheses import (
    NONE,
    Hypothesis,
    Modelled,
    judged,
    modelled,
    noise_of,
)
from meshwright.imports.logs.training_log import Part, Peak, Steps

TINY_S = 1e-12
"""Seconds by which sums of floats may be off."""

FEW = {"recompute", "network", "straggler"}
"""Faults of the gate; `python -m benchmarks.diagnose` plants all."""


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("measured")


@pytest.fixture(scope="module")
def few(profile: Profile) -> dict[str, Planted]:
    return {one.key: one for one in planted(profile, FEW)}


def found(one: Planted, profile: Profile, seed: int = 0) -> tuple[Hypothesis, ...]:
    return judged(replace(one.run, log=log_of(one, profile, seed)), profile)


@pytest.mark.parametrize("key", sorted(FEW))
def test_the_planted_fault_comes_first(
    key: str, few: dict[str, Planted], profile: Profile
) -> None:
    one = few[key]
    told = found(one, profile)
    assert rank(one, told) == 1
    assert told[0].probability > 0.5


def test_probabilities_before_and_after_add_up_to_one(
    few: dict[str, Planted], profile: Profile
) -> None:
    for one in few.values():
        told = found(one, profile)
        assert math.isclose(math.fsum(h.probability for h in told), 1.0)
        assert math.isclose(math.fsum(h.prior for h in told), 1.0)
        assert NONE in {h.fault.name for h in told}


def test_what_a_framework_always_hides_is_no_fault(profile: Profile) -> None:
    (one,) = planted(profile, {"overlap.parameters"})
    keys = [{fault.key for fault in faults(one.run)}]
    for zero in (2, 3):
        plan = one.run.plan.model_copy(update={"zero": zero})
        keys.append({fault.key for fault in faults(replace(one.run, plan=plan))})
    hidden = {"overlap.gradients", "overlap.parameters"}
    assert [found & hidden for found in keys] == [hidden, {"overlap.parameters"}, set()]


def test_gathers_without_overlap_are_told_by_their_timer(profile: Profile) -> None:
    (one,) = planted(profile, {"overlap.parameters"})
    told, calm = (
        modelled(case, profile)
        for case in (one.case, Case("", one.run.spec, one.run.plan))
    )
    assert calm.parts["gathers"] == 0
    more_s = told.step_s - calm.step_s
    assert math.isclose(told.parts["gathers"], more_s, abs_tol=TINY_S)
    assert math.isclose(told.parts["gradients"], calm.parts["gradients"])
    places = [rank(one, found(one, profile, seed)) for seed in range(700, 704)]
    assert max(places) <= 2


def calm_run(one: Planted, profile: Profile) -> tuple[Run, Modelled]:
    """Return a run that is just as modelled, and the model."""
    told = modelled(Case("", one.run.spec, one.run.plan), profile)
    steps = Steps(told.step_s, told.step_s, told.step_s, 50)
    peaks = (Peak(allocated_gib=told.allocated_gib),)
    return replace(one.run, log=replace(one.run.log, steps=steps, peaks=peaks)), told


def test_a_run_as_modelled_is_told_so(
    few: dict[str, Planted], profile: Profile
) -> None:
    run, _ = calm_run(few["recompute"], profile)
    assert judged(run, profile)[0].fault.kind == "as modelled"


def test_what_no_fault_explains_is_none_of_these(
    few: dict[str, Planted], profile: Profile
) -> None:
    """Steps that take a third of what the model says, in no more memory."""
    run, told = calm_run(few["recompute"], profile)
    fast = Steps(told.step_s / 3, 0.0, told.step_s, 50)
    run = replace(run, log=replace(run.log, steps=fast))
    assert judged(run, profile)[0].fault.kind == "none"


def test_traffic_over_another_network_is_told_from_a_slow_one(
    few: dict[str, Planted], profile: Profile
) -> None:
    """At 1/30 of the rate, which is no size that is tried."""
    one = few["network"]
    spec = slower_links(one.run.spec, 1 / 30)
    told = found(replace(one, case=Case("", spec, one.run.plan)), profile)
    assert told[0].fault.key == "other network"
    assert told[0].case.size in ("1/25 of its rate", "1/40 of its rate")


def test_a_fault_of_memory_alone_is_no_reason_for_a_slow_step(
    few: dict[str, Planted], profile: Profile
) -> None:
    run, calm = calm_run(few["network"], profile)
    keys = {hypothesis.fault.key for hypothesis in judged(run, profile)}
    silent, memory_alone = set(), set()
    for fault in faults(run):
        told = [modelled(case, profile) for case in fault.cases]
        if all(abs(one.step_s / calm.step_s - 1) < 0.01 for one in told):
            silent.add(fault.key)
            if any(one.allocated_gib > 1.01 * calm.allocated_gib for one in told):
                memory_alone.add(fault.key)
    assert memory_alone
    assert not silent & keys


def test_what_the_log_says_is_doubted_less(
    few: dict[str, Planted], profile: Profile
) -> None:
    one = few["recompute"]
    open_, said = (
        next(h for h in found(replace(one, run=run), profile) if h.fault.key == one.key)
        for run in (one.run, replace(one.run, said=frozenset({"recompute"})))
    )
    assert said.prior < open_.prior
    assert said.probability < open_.probability


def test_a_case_without_a_fault_is_the_run(
    few: dict[str, Planted], profile: Profile
) -> None:
    for one in few.values():
        spec, plan = one.run.spec, one.run.plan
        told = modelled(Case("", spec, plan), profile)
        assert told.step_s == pytest.approx(check(profile.job(spec), plan).step_s)
        assert (told.parts["input"], told.parts["gathers"]) == (0.0, 0.0)


def test_a_switch_is_told_by_the_position_that_is_wrong(
    few: dict[str, Planted],
) -> None:
    """The framework of this run has fused norms, and no fused rotary positions."""
    names = {fault.key: fault.name for fault in faults(few["recompute"].run)}
    assert names["fused.norm"] == "norms are several kernels"
    assert names["fused.rope"] == "training.fused.rope is true"
    assert names["attention"] == "attention is plain, not a fused kernel"


def test_parts_of_the_step_add_up_to_it(
    few: dict[str, Planted], profile: Profile
) -> None:
    for one in few.values():
        calm = Case("", one.run.spec, one.run.plan)
        for case in (calm, one.case, replace(one.case, slow=1.5, waits=0.2)):
            told = modelled(case, profile)
            parts = {n: s for n, s in told.parts.items() if n != "forward and backward"}
            # The host between two steps is in no part: 10 ms.
            left_s = told.step_s - math.fsum(parts.values())
            assert -TINY_S <= left_s < 0.012, case
            assert told.parts["input"] == pytest.approx(
                case.waits * told.step_s / (1 + case.waits)
            )


def test_no_fault_of_machines_makes_a_step_faster(
    few: dict[str, Planted], profile: Profile
) -> None:
    found_keys = set()
    for one in few.values():
        run = one.run
        calm_s = modelled(Case("", run.spec, run.plan), profile).step_s
        for fault in faults(run):
            if fault.kind in ("network", "GPUs", "host"):
                found_keys.add(fault.key)
                steps_s = [modelled(case, profile).step_s for case in fault.cases]
                assert min(steps_s) >= calm_s - TINY_S, fault.name
                assert max(steps_s) > calm_s, fault.name
    assert found_keys >= {"network", "straggler", "clocks", "host", "input"}


def test_a_slow_network_between_stages_is_in_the_pipeline_alone(
    few: dict[str, Planted], profile: Profile
) -> None:
    """Sends between stages count as the pipeline's, and slow no stage over another."""
    run = few["straggler"].run
    assert run.plan.pp == 4
    assert run.plan.tp <= run.spec.cluster.gpus_per_host
    slower = next(fault for fault in faults(run) if fault.key == "network").cases[-1]
    calm, told = (
        modelled(case, profile) for case in (Case("", run.spec, run.plan), slower)
    )
    assert told.parts["pipeline"] > calm.parts["pipeline"]
    assert told.parts["forward"] == pytest.approx(calm.parts["forward"])
    assert told.spread == pytest.approx(calm.spread)


def test_one_slow_rank_is_told_from_slow_gpus_by_the_fastest_rank(
    few: dict[str, Planted], profile: Profile
) -> None:
    one = few["straggler"]
    log = log_of(one, profile, 0)
    alike = tuple(
        Part(part.name, part.of, part.seconds, part.seconds and part.fastest_s)
        if part.fastest_s is None
        else replace(part, fastest_s=part.seconds)
        for part in log.parts
    )
    told = judged(replace(one.run, log=replace(log, parts=alike)), profile)
    assert told[0].fault.key != "straggler"


def test_parts_of_a_step_are_those_of_its_price(
    few: dict[str, Planted], profile: Profile
) -> None:
    """Without a pipeline all passes are on one stage, and the price has their sum."""
    for key in ("network", "recompute"):
        run = few[key].run
        priced = check(profile.job(run.spec), run.plan)
        told, seconds = (
            modelled(Case("", run.spec, run.plan), profile),
            priced.time_parts,
        )
        passes = ("compute", "recompute", "tp", "ep", "cp", "zero")
        assert told.parts["forward and backward"] == pytest.approx(
            told.parts["forward"] + told.parts["backward"]
        )
        assert told.parts["forward and backward"] == pytest.approx(
            sum(seconds[name] for name in passes)
        )
        assert 0.4 < told.parts["forward"] / told.parts["backward"] < 0.6
        assert told.parts["gradients"] == pytest.approx(seconds["dp"])
        assert told.parts["optimizer"] == pytest.approx(seconds["optimizer"])
        assert told.parts["pipeline"] == told.parts["input"] == 0.0
        assert told.spread == 1.0
        assert told.allocated_gib == pytest.approx(priced.stages[0].allocated_gib)


def test_parts_with_a_pipeline_are_those_of_the_busiest_stage(
    few: dict[str, Planted], profile: Profile
) -> None:
    """The last of four stages has the head beside as many layers."""
    run = few["straggler"].run
    priced = check(profile.job(run.spec), run.plan)
    told, seconds = modelled(Case("", run.spec, run.plan), profile), priced.time_parts
    passes_s = sum(seconds[name] for name in ("compute", "recompute", "tp"))
    assert told.parts["forward"] + told.parts["backward"] == pytest.approx(passes_s)
    waited_s = seconds["pp"] + seconds["bubble"]
    assert told.parts["pipeline"] == pytest.approx(waited_s)
    assert told.allocated_gib == max(stage.allocated_gib for stage in priced.stages)
    assert 1.03 < told.spread < 1.07


def test_a_slow_node_computes_longer_and_no_more(
    few: dict[str, Planted], profile: Profile
) -> None:
    """At half its speed: messages take as long, and other stages wait for it."""
    for key in ("network", "straggler"):
        run = few[key].run
        calm, slow = (
            modelled(Case("", run.spec, run.plan, slow=factor), profile)
            for factor in (1.0, 2.0)
        )
        computed_s = check(profile.job(run.spec), run.plan).time_parts["compute"]
        longer = {name: slow.parts[name] - calm.parts[name] for name in calm.parts}
        assert longer["forward"] + longer["backward"] == pytest.approx(computed_s)
        assert 0.4 < longer["forward"] / longer["backward"] < 0.6
        assert longer["gradients"] == longer["optimizer"] == 0.0
        assert slow.step_s - calm.step_s == pytest.approx(
            longer["forward"] + longer["backward"] + longer["pipeline"]
        )
        assert slow.spread == pytest.approx(2 * calm.spread)
        if run.plan.pp == 1:
            assert longer["pipeline"] == pytest.approx(0.0, abs=TINY_S)


def test_a_slow_gpu_is_slow_in_every_kernel_and_in_no_message(
    few: dict[str, Planted], profile: Profile
) -> None:
    run = few["network"].run
    calm, slow = (
        modelled(Case("", run.spec, run.plan, clocks=rate), profile)
        for rate in (1.0, 0.5)
    )
    seconds = check(profile.job(run.spec), run.plan).time_parts
    passes_s = slow.parts["forward and backward"] - calm.parts["forward and backward"]
    assert passes_s == pytest.approx(seconds["compute"], rel=0.01)
    assert slow.parts["optimizer"] == pytest.approx(2 * seconds["optimizer"])


def log_density(errors: list[float], run: Run, told: Modelled, sd: float) -> float:
    """Return the density of the errors of a step and of its shares.

    Each part is longer by an error of its own, which moves its share up, and the step
    up, and with it all shares down.
    """
    shares = [told.parts[name] / told.step_s for name in run.parts]
    count = len(shares)
    moved = np.zeros((count + 1, count + 1))
    moved[0, 0] = math.sqrt(1 - sum(share**2 for share in shares))
    for i, share in enumerate(shares):
        moved[0, i + 1] = share
        for j, other in enumerate(shares):
            moved[i + 1, j + 1] = share * ((i == j) - other)
    covariance = sd**2 * moved @ moved.T
    for i in range(count):
        covariance[i + 1, i + 1] += 0.02**2
    constant = (count + 1) / 2 * math.log(2 * math.pi)
    return float(multivariate_normal(cov=covariance).logpdf(errors)) + constant


def normal(error: float, sd: float) -> float:
    return float(norm(scale=sd).logpdf(error)) + math.log(2 * math.pi) / 2


@pytest.mark.parametrize("key", ["recompute", "straggler"])
def test_probabilities_are_priors_times_likelihoods(
    key: str, few: dict[str, Planted], profile: Profile
) -> None:
    """Recomputed with the densities of SciPy; sizes of a fault share its odds."""
    one = few[key]
    run, noise = (
        replace(one.run, log=log_of(one, profile, 1)),
        noise_of(one.run, profile),
    )
    peak_gib = run.log.peak.allocated_gib
    assert peak_gib is not None

    def errors(told: Modelled) -> list[float]:
        seconds = run.parts.items()
        shares = [s / run.step_s - told.parts[n] / told.step_s for n, s in seconds]
        return [math.log(run.step_s / told.step_s), *shares]

    def likelihood(told: Modelled) -> float:
        found = log_density(errors(told), run, told, noise.step_sd)
        if run.spread is not None:
            found += normal(math.log(run.spread / told.spread), 0.08)
        error = math.log(peak_gib / told.allocated_gib) - noise.memory_bias
        return found + normal(error, noise.memory_sd)

    calm = modelled(Case("", run.spec, run.plan), profile)
    step, *shares = errors(calm)
    unlisted = normal(step, 0.7) + sum(normal(share, 0.25) for share in shares)
    unlisted += normal(math.log(peak_gib / calm.allocated_gib), 0.4)
    if run.spread is not None:
        unlisted += normal(math.log(run.spread / calm.spread), 0.25)
    odds = {"none": [(1.0, likelihood(calm))], "other": [(0.05, unlisted)]}
    for fault in faults(run):
        sizes = [modelled(case, profile) for case in fault.cases]
        if max(abs(told.step_s / calm.step_s - 1) for told in sizes) > 0.01:
            odd = fault.prior / (1 - fault.prior) / len(sizes)
            odds[fault.name] = [(odd, likelihood(told)) for told in sizes]
    most = max(log for sizes in odds.values() for _, log in sizes)
    after = {
        name: sum(odd * math.exp(log - most) for odd, log in sizes)
        for name, sizes in odds.items()
    }
    before = {name: sum(odd for odd, _ in sizes) for name, sizes in odds.items()}
    named = {"as modelled": "none", "none": "other"}
    every = judged(run, profile)
    for told in every:
        name = named.get(told.fault.kind, told.fault.name)
        assert told.prior == pytest.approx(before[name] / sum(before.values()))
        wanted = after[name] / sum(after.values())
        assert told.probability == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    assert len(every) == len(odds)


def test_noise_is_what_the_profile_states_of_runs_like_one(
    few: dict[str, Planted], profile: Profile
) -> None:
    """Nine runs in ten are within 1.645 standard deviations of a normal."""
    run = few["network"].run
    errors = profile.errors(run.spec)
    assert errors is not None
    spread = profile.memory_spread("megatron")
    noise = noise_of(run, profile)
    assert noise.step_sd == pytest.approx(errors[1].p90 / 1.645)
    assert (noise.memory_bias, noise.memory_sd) == (spread.bias, spread.sigma)
    assert noise_of(run, Profile()).step_sd == 0.1


def test_a_node_that_is_hardly_slower_changes_hardly_anything(
    few: dict[str, Planted], profile: Profile
) -> None:
    """Nor where most of many micro-batches are left out of the graph of tasks."""
    run = few["straggler"].run
    for microbatches in (64, 65_536):
        spec = run.spec.having("training", global_batch=2 * microbatches)
        plan = run.plan.model_copy(update={"microbatches": microbatches})
        calm, slow = (
            modelled(Case("", spec, plan, slow=factor), profile)
            for factor in (1.0, 1 + 1e-9)
        )
        assert slow.step_s == pytest.approx(calm.step_s, rel=1e-6)
        assert slow.parts == pytest.approx(calm.parts, rel=1e-6)
