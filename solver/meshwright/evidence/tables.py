"""A scoreboard of predictions as tables and as JSON."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

from meshwright.cost.hardware_efficiency import Efficiency
from meshwright.cost.profile import Measured, Profile
from meshwright.evidence.reliability import Decile, reliability
from meshwright.evidence.score import (
    FitScore,
    LeftOutRun,
    MemoryScore,
    RankingScore,
    Score,
    Scoreboard,
    TimeScore,
)
from meshwright.report.tables import Lines, Section, Table

SHOWN_IDS = 3


def evidence_sections(board: Scoreboard) -> list[Section]:
    """Return the sections of a scoreboard."""
    groups = {"all": board.overall}
    parts: list[Section] = [
        _time_table("Step time, predicted against measured", groups, "runs"),
        _time_table("By source", board.by_source, "source"),
        _time_table("By GPU", board.by_gpu, "GPU"),
        _time_table("By framework", board.by_framework, "framework"),
    ]
    if board.weak:
        parts.append(_time_table("Weak sources, in no average", board.weak, "source"))
    if board.without_profile:
        title = "Code bases without a profile, priced as generic, in no average"
        parts.append(_time_table(title, board.without_profile, "code base"))
    parts.append(_memory_table(groups | board.by_source))
    parts.append(_fit_table(groups | board.by_source))
    parts.append(_reliability_table(reliability(board.averaged)))
    if board.assumed:
        parts.append(_assumed_table(board.assumed))
    if board.contradictory:
        parts.append(_left_table("Published values disagree", board.contradictory))
    if board.unpriced:
        parts.append(_left_table("Not priced", board.unpriced))
    parts.append(
        Lines(
            "Reading",
            (
                "median, p90, p95: of |ln(predicted / measured)|; bias: of its mean.",
                "tau: Kendall's, mean over groups of the same model, GPUs and batch.",
                "regret: measured time of the run predicted fastest / best measured.",
                "peaks below: share of measured peaks below what the tenth ends at.",
            ),
        )
    )
    return parts


def profile_sections(profile: Profile) -> list[Section]:
    """Return the sections of a fitted profile."""
    heading = ("GPU", "framework", "rows", "before", "fitted", "left out", "p90")
    rows = tuple(_measured_cells(fit) for fit in profile.measured)
    return [
        Table("Mean error of step time", heading, rows),
        _parameter_table(profile),
    ]


def _measured_cells(fit: Measured) -> tuple[str, ...]:
    out = fit.left_out
    about = "" if out and out.is_measured else "~"
    left_out = (
        (f"{about}{out.mape:.1%}", f"{about}{out.p90:.1%}") if out else ("-",) * 2
    )
    errors = (f"{fit.mape_before:.1%}", f"{fit.mape_fitted:.1%}", *left_out)
    return (fit.gpu, fit.framework, str(fit.rows), *errors)


def _parameter_table(profile: Profile) -> Table:
    fits = profile.measured
    names = (f"{fit.gpu} {fit.framework}" for fit in fits)
    rows = tuple(
        (
            name,
            f"{value:.3g}",
            *(_parameter(profile, fit, name) for fit in fits),
        )
        for name, value in Efficiency().model_dump().items()
    )
    title = "Fitted parameters (unknown: the runs do not tell)"
    return Table(title, ("parameter", "default", *names), rows)


def _parameter(profile: Profile, fit: Measured, name: str) -> str:
    if name in fit.unidentified:
        return "unknown"
    efficiency = profile.efficiency_of(fit.run_class, "vendor")
    return f"{efficiency.model_dump()[name]:.3g}"


def evidence_data(board: Scoreboard) -> dict[str, Any]:
    """Return a scoreboard as plain data."""
    return {
        **board.overall.as_dict(),
        "by_source": {name: s.as_dict() for name, s in board.by_source.items()},
        "by_gpu": {name: s.as_dict() for name, s in board.by_gpu.items()},
        "by_framework": {n: s.as_dict() for n, s in board.by_framework.items()},
        "reliability": [asdict(own) for own in reliability(board.averaged)],
        "weak": {name: s.as_dict() for name, s in board.weak.items()},
        "without_profile": {
            name: s.as_dict() for name, s in board.without_profile.items()
        },
        "unpriced": [{"id": row.id, "reason": row.reason} for row in board.unpriced],
        "contradictory": [
            {"id": row.id, "reason": row.reason} for row in board.contradictory
        ],
        "assumed": board.assumed,
    }


def _time_table(title: str, scores: dict[str, Score], what: str) -> Table:
    heading = (
        what, "rows", "MAPE", "median", "p90", "p95", "bias", "groups", "tau", "regret",
        "worst",
    )  # fmt: skip
    rows = [
        (name, *_time_cells(score.time), *_ranking_cells(score.ranking))
        for name, score in scores.items()
    ]
    return Table(title, heading, tuple(rows))


def _time_cells(time: TimeScore | None) -> tuple[str, ...]:
    if time is None:
        return ("0", *["-"] * 5)
    shares = (time.mape, time.median, time.p90, time.p95)
    return (str(time.rows), *(f"{x:.1%}" for x in shares), f"{time.bias:+.1%}")


def _ranking_cells(ranking: RankingScore | None) -> tuple[str, ...]:
    if ranking is None:
        return ("0", "-", "-", "-")
    return (
        str(ranking.groups),
        f"{ranking.kendall_tau_mean:.2f}",
        f"{ranking.regret_mean:.3f}",
        f"{ranking.regret_max:.3f}",
    )


def _memory_table(scores: dict[str, Score]) -> Table:
    rows = [
        (name, kind, *_memory_cells(memory))
        for name, score in scores.items()
        for kind, memory in score.memory_by_kind.items()
    ]
    heading = ("runs", "kind", "rows", "median", "p90", "worst")
    return Table("Peak memory of a GPU, by what was counted", heading, tuple(rows))


def _memory_cells(memory: MemoryScore) -> tuple[str, ...]:
    shares = (memory.median, memory.p90, memory.worst)
    return (str(memory.rows), *(f"{x:.1%}" for x in shares))


def _fit_table(scores: dict[str, Score]) -> Table:
    rows = [
        (name, *_fit_cells(score.fits)) for name, score in scores.items() if score.fits
    ]
    heading = ("runs", "rows", "fits, ran", "fits, OOM", "OOM, OOM", "OOM, ran")
    return Table("Does it fit: predicted, measured", heading, tuple(rows))


def _fit_cells(fits: FitScore) -> tuple[str, ...]:
    counts = (fits.rows, fits.true_fits, fits.false_fits, fits.true_ooms)
    return tuple(map(str, (*counts, fits.false_ooms)))


def _reliability_table(deciles: tuple[Decile, ...]) -> Table:
    rows = tuple(
        (
            f"{own.low:.1f} to {own.high:.1f}",
            str(own.rows),
            _two_digits(own.stated),
            _two_digits(own.ran),
            _two_digits(own.peaks_below),
        )
        for own in deciles
    )
    heading = ("stated to fit", "runs", "mean", "ran", "peaks below")
    return Table("How likely it fits: stated, observed", heading, rows)


def _two_digits(share: float | None) -> str:
    return "-" if share is None else f"{share:.2f}"


def _assumed_table(assumed: dict[str, int]) -> Table:
    rows = tuple((field, str(count)) for field, count in sorted(assumed.items()))
    return Table("Assumed where not published", ("field", "rows"), rows)


def _left_table(title: str, left: tuple[LeftOutRun, ...]) -> Table:
    reasons: dict[str, list[str]] = defaultdict(list)
    for row in left:
        reasons[row.reason].append(row.id)
    rows = [
        (reason, str(len(ids)), ", ".join(ids[:SHOWN_IDS]) + _more(len(ids)))
        for reason, ids in sorted(reasons.items())
    ]
    return Table(title, ("reason", "rows", "runs"), tuple(rows))


def _more(count: int) -> str:
    return ", ..." if count > SHOWN_IDS else ""
