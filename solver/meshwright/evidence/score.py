"""Scores predictions against measured runs: time, ranking, memory, and fit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cost.profile import Profile, Ranking
from meshwright.evidence.price import Priced, price_runs
from meshwright.evidence.runs import Run
from meshwright.plans.columns import Floats, Ints


@dataclass(frozen=True)
class TimeScore:
    """Errors of step time; median, p90 and p95 of |ln(predicted / measured)|."""

    rows: int
    mape: float
    median: float
    p90: float
    p95: float
    bias: float
    """exp(mean ln(predicted / measured)) - 1."""


@dataclass(frozen=True)
class RankingScore:
    """Order within groups of the same model, GPUs and batch."""

    groups: int
    kendall_tau_mean: float
    regret_median: float
    """Measured time of the run predicted to be fastest, over the fastest measured."""
    regret_mean: float
    regret_max: float


@dataclass(frozen=True)
class MemoryScore:
    """|ln(predicted / measured)| of peak memory."""

    rows: int
    median: float
    p90: float
    worst: float


@dataclass(frozen=True)
class FitScore:
    """Whether runs fit in memory: as predicted, and as measured."""

    rows: int
    true_fits: int
    false_fits: int
    """Runs that were predicted to fit and ran out of memory."""
    true_ooms: int
    false_ooms: int


@dataclass(frozen=True)
class Score:
    """All scores of some runs; None where no run has the measurement."""

    time: TimeScore | None
    ranking: RankingScore | None
    memory: MemoryScore | None
    memory_by_kind: dict[str, MemoryScore]
    """By kind of reading: allocated, reserved, or device (as of nvidia-smi)."""
    fits: FitScore | None


@dataclass(frozen=True)
class LeftOutRun:
    """A run that no average includes, and why."""

    id: str
    reason: str


@dataclass(frozen=True)
class Scoreboard:
    """The scores of a file: overall, and by what runs have in common."""

    priced: list[Priced]
    """All runs with a prediction."""
    averaged: list[Priced]
    """The runs of the averages: of strong sources, and without contradictions."""
    overall: Score
    by_source: dict[str, Score]
    by_gpu: dict[str, Score]
    by_framework: dict[str, Score]
    weak: dict[str, Score]
    """Scores by source, of the sources that are reported apart."""
    without_profile: dict[str, Score]
    """Scores by code base, of the runs that are priced as generic."""
    unpriced: tuple[LeftOutRun, ...]
    contradictory: tuple[LeftOutRun, ...]
    """Runs whose published values contradict each other."""
    assumed: dict[str, int]
    """By field, how many priced runs needed an assumed value."""


def judge(
    runs: list[Run], weak_sources: Collection[str] = (), profile: Profile | None = None
) -> Scoreboard:
    """Return how predictions compare with runs.

    Weak sources are kept apart, and so are runs of code bases without a profile.
    """
    priced, unpriced = price_runs(runs, profile)
    agreeing = [one for one in priced if not one.run.is_contradictory]
    sound = [one for one in agreeing if one.has_profile]
    generic = [one for one in agreeing if not one.has_profile]
    strong = [one for one in sound if one.run.source_id not in weak_sources]
    weak = [one for one in sound if one.run.source_id in weak_sources]
    return Scoreboard(
        priced=priced,
        averaged=strong,
        overall=score(strong),
        by_source=_scores_by(strong, lambda one: one.run.source_id),
        by_gpu=_scores_by(strong, lambda one: one.spec.cluster.topology.gpu.name),
        by_framework=_scores_by(strong, lambda one: one.spec.framework),
        weak=_scores_by(weak, lambda one: one.run.source_id),
        without_profile=_scores_by(generic, lambda one: one.run.config.framework),
        unpriced=tuple(LeftOutRun(run.id, reason) for run, reason in unpriced),
        contradictory=tuple(
            LeftOutRun(one.run.id, str(one.run.check.issues if one.run.check else ""))
            for one in priced
            if one.run.is_contradictory
        ),
        assumed=dict(Counter(field for one in priced for field in one.assumed)),
    )


def score(priced: list[Priced]) -> Score:
    """Return the scores of priced runs."""
    timed = [p for p in priced if p.run.step_s]
    memory = _memory_errors(priced)
    return Score(
        time=_time(timed) if timed else None,
        ranking=_ranking(timed),
        memory=_memory([error for errors in memory.values() for error in errors]),
        memory_by_kind={
            kind: found for kind, errors in memory.items() if (found := _memory(errors))
        },
        fits=_fits([p for p in priced if p.run.measured.fits is not None]),
    )


LEAST_GROUP = 3
"""Least number of runs of a group that is ranked."""


def groups_of(priced: Sequence[Priced]) -> list[Ints]:
    """Return the runs of one source on the same model, GPUs and batch, by index.

    Groups that are too small to be ranked are left out.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(priced):
        run = one.run
        key = (run.source_id, run.model, run.hardware, run.config.global_batch)
        groups[str(key)].append(index)
    return [
        np.array(members) for members in groups.values() if len(members) >= LEAST_GROUP
    ]


def regret(measured: Floats, predicted: Floats) -> float:
    """Return the measured time of the run predicted fastest, over the fastest."""
    return float(measured[predicted.argmin()] / measured.min())


def rankings(priced: Sequence[Priced], errors: Floats) -> Iterator[Ranking]:
    """Yield the regret by framework and kind of model, where runs are predicted anew.

    `errors` are ln(predicted / measured) of runs that no fit had seen.
    """
    measured = np.array([one.run.step_s for one in priced], dtype=float)
    found: dict[tuple[str, bool], list[Ints]] = defaultdict(list)
    for group in groups_of(priced):
        spec = priced[group[0]].spec
        found[spec.framework, spec.model.moe is not None].append(group)
    for (framework, has_experts), groups in sorted(found.items()):
        lost = [
            regret(measured[members], measured[members] * np.exp(errors[members])) - 1
            for members in groups
        ]
        sources = {priced[members[0]].run.source_id for members in groups}
        yield Ranking(
            framework=framework,
            has_experts=has_experts,
            groups=len(groups),
            sources=len(sources),
            regret=float(np.median(lost)),
            mean_regret=float(np.mean(lost)),
        )


def memory_kind(priced: Priced) -> str:
    """Return the kind of a published memory reading: allocated, reserved or device.

    Only PyTorch keeps peaks; a peak without another word is of reserved memory, as NeMo
    (`peak_memory_usage`) and torchtitan log it. A mere number of GB is of the device.
    """
    text = (priced.run.measured.peak_memory_kind or "").lower()
    if "allocated" in text:
        return "allocated"
    return "reserved" if "reserved" in text or "peak" in text else "device"


def predicted_gib(priced: Priced) -> float:
    """Return the prediction for the kind of reading that a run has published."""
    return {
        "allocated": priced.allocated_gib,
        "reserved": priced.reserved_gib,
        "device": priced.device_gib,
    }[memory_kind(priced)]


def _scores_by(
    priced: Iterable[Priced], key: Callable[[Priced], str]
) -> dict[str, Score]:
    groups: dict[str, list[Priced]] = defaultdict(list)
    for one in priced:
        groups[key(one)].append(one)
    return {name: score(groups[name]) for name in sorted(groups)}


def _time(priced: list[Priced]) -> TimeScore:
    errors = np.array([np.log(p.step_s / (p.run.step_s or np.nan)) for p in priced])
    return TimeScore(
        rows=len(priced),
        mape=float(np.mean(np.abs(np.expm1(errors)))),
        median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.90)),
        p95=float(np.quantile(np.abs(errors), 0.95)),
        bias=float(np.expm1(errors.mean())),
    )


def _ranking(priced: list[Priced]) -> RankingScore | None:
    taus, regrets = [], []
    for group in groups_of(priced):
        predicted, measured = _distinct([priced[i] for i in group])
        if len(predicted) < LEAST_GROUP:
            continue
        taus.append(kendall_tau(predicted, measured))
        regrets.append(regret(measured, predicted))
    if not taus:
        return None
    return RankingScore(
        groups=len(taus),
        kendall_tau_mean=float(np.mean(taus)),
        regret_median=float(np.median(regrets)),
        regret_mean=float(np.mean(regrets)),
        regret_max=max(regrets),
    )


def _distinct(priced: list[Priced]) -> tuple[Floats, Floats]:
    """Return predicted and measured times, runs of equal prediction as one.

    They are the same plan, run again or with what costs nothing in the model, so that
    no order of them is predicted. Predictions that differ by rounding are equal.
    """
    times: dict[float, list[float]] = defaultdict(list)
    for one in priced:
        times[float(f"{one.step_s:.9g}")].append(one.run.step_s or np.nan)
    means = [float(np.mean(same)) for same in times.values()]
    return np.array(list(times)), np.array(means)


def kendall_tau(predicted: Floats, measured: Floats) -> float:
    """Return Kendall's tau-b of two orders, 0 where one of them is all ties."""
    from scipy.stats import kendalltau

    tau = kendalltau(predicted, measured).statistic
    return 0.0 if np.isnan(tau) else float(tau)


def _memory_errors(priced: list[Priced]) -> dict[str, list[float]]:
    """Return |ln(predicted / measured)| of peak memory, by kind of reading."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for one in priced:
        measured = one.run.measured.peak_memory_gb
        if measured is not None:
            kind = memory_kind(one)
            predicted = predicted_gib(one)
            kinds[kind].append(abs(float(np.log(predicted / measured))))
    return dict(sorted(kinds.items()))


def _memory(errors: list[float]) -> MemoryScore | None:
    if not errors:
        return None
    return MemoryScore(
        rows=len(errors),
        median=float(np.median(errors)),
        p90=float(np.quantile(errors, 0.90)),
        worst=max(errors),
    )


def _fits(priced: list[Priced]) -> FitScore | None:
    if not priced:
        return None
    pairs = [(one.fits, bool(one.run.measured.fits)) for one in priced]
    return FitScore(
        rows=len(pairs),
        true_fits=pairs.count((True, True)),
        false_fits=pairs.count((True, False)),
        true_ooms=pairs.count((False, False)),
        false_ooms=pairs.count((False, True)),
    )
