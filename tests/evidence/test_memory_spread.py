"""The spread of predicted memory is found again in runs that were made with it."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from benchmarks.fit_memory import published_spreads

from meshwright.cost.profile import ANY_FRAMEWORK, Profile, load_profile
from meshwright.evidence.memory_spread import (
    memory_rows,
    reliability,
    with_calibrated_memory,
)
from meshwright.evidence.price import Priced, price_run
from meshwright.evidence.runs import Run
from meshwright.spec.goals import MemorySpread
from tests.evidence.test_runs import row
from tests.helpers.command import run as run_command

BIAS, SIGMA = 0.08, 0.03


@cache
def measured(count: int) -> list[Priced]:
    """Return runs whose allocated peaks are off as a spread says."""
    return priced_alike(_runs(count), None)


def priced_alike(runs: list[Run], profile: Profile | None) -> list[Priced]:
    """Return the predictions for runs of one plan, which is priced once."""
    first = price_run(runs[0], profile)
    return [replace(first, run=run) for run in runs]


def _runs(count: int) -> list[Run]:
    chance = random.Random(1)
    allocated_gib = price_run(Run.model_validate(row())).allocated_gib
    runs = []
    for index in range(count):
        data = row(id=f"run-{index}", source_id=f"source-{index % 5}")
        peak_gib = allocated_gib * pow(2.718281828, chance.gauss(BIAS, SIGMA))
        data["measured"] |= {"peak_memory_gb": peak_gib, "fits": True}
        data["measured"]["peak_memory_kind"] = "allocated"
        runs.append(Run.model_validate(data))
    return runs


def labelled(fits: bool, source: str) -> Priced:
    data = row(id=f"{source}-{fits}", source_id=source)
    data["measured"] = {"fits": fits}
    return price_run(Run.model_validate(data))


def test_a_spread_is_found_in_the_runs_that_it_made() -> None:
    runs = measured(40)
    found = with_calibrated_memory(Profile(), runs, load_profile("unfitted")).memory
    result = found[runs[0].spec.framework]
    assert (result.basis, result.peaks) == ("calibrated", 40)
    assert result.bias == pytest.approx(BIAS, abs=0.02)
    assert result.sigma == pytest.approx(SIGMA, abs=0.012)


def test_few_runs_of_ones_own_narrow_the_spread() -> None:
    runs, base = measured(5), load_profile("unfitted")
    name = runs[0].spec.framework
    found = with_calibrated_memory(Profile(), runs, base).memory[name]
    assert found.sigma < base.memory_spread(name).sigma


def test_published_runs_weigh_less_than_ones_own() -> None:
    runs = measured(40)
    name = runs[0].spec.framework
    published = published_spreads(runs)
    found = with_calibrated_memory(Profile(), runs, Profile(memory=published))
    assert found.memory[name].sigma < published[name].sigma
    assert published[name].sigma < published[ANY_FRAMEWORK].sigma


def test_runs_of_one_plan_weigh_as_one() -> None:
    """A source that ran a plan ten times tells no more of a bias than another's one."""
    data = row(id="once", source_id="once")
    other = row(id="other", source_id="often", config__micro_batch=4)
    often = [row(id=f"again-{n}", source_id="often") for n in range(10)]
    rows = []
    for one in [data, other, *often]:
        one["measured"] |= {"peak_memory_gb": 20.0, "fits": True}
        rows.append(price_run(Run.model_validate(one)))
    once, alone, *again = memory_rows(rows).weights(4)
    assert once == alone == pytest.approx(sum(again)) == 1.0


def test_only_sources_that_tell_of_failures_have_labels() -> None:
    ran = [labelled(True, "only-ran")] * 3
    assert len(memory_rows(ran)) == 0
    both = [*ran, labelled(True, "both"), labelled(False, "both")]
    rows = memory_rows(both)
    assert rows.sources == ["both", "both"]
    assert rows.fits.tolist() == [True, False]


def test_failures_raise_the_need() -> None:
    """Of plans that would fill a card by 92 to 104 %, without a right prediction."""
    fine, bad = (published_spreads(near_the_limit(count)) for count in (1, 5))
    name = next(iter(set(fine) - {ANY_FRAMEWORK}))
    assert bad[name].usable_gib(80, 0.05) < 0.97 * fine[name].usable_gib(80, 0.05)


def near_the_limit(failed: int) -> list[Priced]:
    """Return six runs of plans that nearly fill a GPU; the fullest of them fail."""
    shares = (1.04, 1.02, 1.0, 0.97, 0.95, 0.92)
    runs = [labelled(index >= failed, "a") for index in range(len(shares))]
    whole_gib = runs[0].spec.cluster.topology.gpu.memory_gib
    return [
        replace(run, peak_gib=share * whole_gib)
        for run, share in zip(runs, shares, strict=True)
    ]


def test_one_failure_of_another_kind_spoils_nothing() -> None:
    """A run that would fill a thousandth of its GPU failed for another reason."""
    runs = [*measured(40), labelled(False, "source-1")]
    name = runs[0].spec.framework
    with_it, without = (published_spreads(one)[name] for one in (runs, runs[:-1]))
    assert with_it.sigma == pytest.approx(without.sigma, rel=0.1)


def test_a_right_spread_is_reliable() -> None:
    """At each tenth as many peaks lie below as were said to."""
    right = MemorySpread(bias=BIAS, sigma=SIGMA)
    profile = Profile(memory={ANY_FRAMEWORK: right})
    runs = priced_alike(_runs(150), profile)
    for decile in reliability(runs):
        assert decile.peaks_below == pytest.approx(decile.high, abs=0.1)
    wrong = Profile(memory={ANY_FRAMEWORK: MemorySpread(sigma=SIGMA)})
    runs = priced_alike(_runs(150), wrong)
    assert (reliability(runs)[4].peaks_below or 0) < 0.1


def test_shipped_profiles_have_the_same_spreads() -> None:
    one, other = load_profile("measured"), load_profile("unfitted")
    assert one.memory == other.memory
    assert one.memory[ANY_FRAMEWORK].basis == "pooled"
    known = [each for each in one.memory.values() if each.basis == "known"]
    assert known
    assert all(each.sources and each.peaks for each in known)


def test_calibrate_writes_the_spread(tmp_path: Path) -> None:
    runs = tmp_path / "runs.yaml"
    data = [one.run.model_dump(mode="json") for one in measured(4)]
    runs.write_text(yaml.safe_dump(data), encoding="utf-8")
    told = run_command("calibrate", str(runs), "-o", str(tmp_path / "mine.yaml"))
    assert told.code == 0, told.stderr
    found = load_profile(str(tmp_path / "mine.yaml")).memory
    assert [each.peaks for each in found.values() if each.basis == "calibrated"] == [4]
