"""Faults that were planted into logs are found, with probabilities that add up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from benchmarks.diagnose import Planted, log_of, planted, rank

from meshwright.check.check import check
from meshwright.cost.profile import Profile, load_profile
from meshwright.diagnosis.faults import Case, Run, faults, slower_links
from meshwright.diagnosis.hypotheses import NONE, Hypothesis, Modelled, judged, modelled
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
