"""A scoreboard of predictions as tables, as JSON and as plots."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from meshwright.cost.job import Efficiency
from meshwright.cost.profile import Measured, Profile
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.evidence.memory_spread import Decile, reliability
from meshwright.evidence.price import Priced
from meshwright.evidence.score import (
    FitScore,
    LeftOutRun,
    MemoryScore,
    RankingScore,
    Score,
    Scoreboard,
    TimeScore,
)
from meshwright.report.chart import plot_library, save_chart
from meshwright.report.tables import Lines, Section, Table

if TYPE_CHECKING:
    import altair

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
    return [Table("Mean error of step time", heading, rows), _parameter_table(profile)]


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
        (name, f"{value:.3g}", *(_parameter(profile, fit, name) for fit in fits))
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
    data = asdict(replace(board, priced=[], averaged=[]))
    data["reliability"] = [asdict(decile) for decile in reliability(board.averaged)]
    names = (
        "by_source", "by_gpu", "by_framework", "reliability", "weak",
        "without_profile", "unpriced", "contradictory", "assumed",
    )  # fmt: skip
    return {**data["overall"], **{name: data[name] for name in names}}


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
            f"{decile.low:.1f} to {decile.high:.1f}",
            str(decile.rows),
            _two_digits(decile.stated),
            _two_digits(decile.ran),
            _two_digits(decile.peaks_below),
        )
        for decile in deciles
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


SIZE_PX = 800
"""Width and height of the picture, legend included."""

BAND = 0.2
"""Relative error at which lines are drawn on both sides of the diagonal."""


def save_plot(priced: list[Priced], path: Path) -> list[Path]:
    """Write `path`.png and `path`.html, and `path`_fits beside them; return the paths.

    The first is of step times, the second of stated probabilities of fitting, where
    peaks were measured. A page holds its scripts and its data, and loads nothing
    when it is viewed.

    Raises:
        SpecError: no run has a time, a library is missing, or a file is not writable.
    """
    timed = [one for one in priced if one.run.step_s]
    if not timed:
        raise SpecError("--plot: no run with a time can be priced")
    title = f"{len(timed):,} runs; dashed: {BAND:.0%} off"
    paths = save_chart(lambda width: _chart(timed, title, width), title, path)
    return [*paths, *_save_reliability(priced, path)]


def _save_reliability(priced: list[Priced], path: Path) -> list[Path]:
    """Write the diagram of stated probabilities beside the scatter plot."""
    title = "Share of measured peaks below what was stated for each probability"
    deciles = [
        decile for decile in reliability(priced) if decile.peaks_below is not None
    ]
    if not deciles:
        return []
    points = [
        {"stated": decile.high, "observed": decile.peaks_below} for decile in deciles
    ]
    beside = path.with_name(f"{path.stem}_fits{path.suffix}")
    return save_chart(
        lambda width: _reliability_chart(points, title, width), title, beside
    )


def _reliability_chart(
    points: list[dict[str, float | None]], title: str, width: int
) -> Any:
    alt = plot_library()
    ends = [{"stated": at, "observed": at} for at in (0, 1)]
    x = alt.X("stated:Q", title="stated probability")
    y = alt.Y("observed:Q", title="observed share")
    right = alt.Chart(alt.InlineData(values=ends)).mark_line(color="gray")
    seen = alt.Chart(alt.InlineData(values=points)).mark_line(point=True)
    chart = alt.layer(right.encode(x=x, y=y), seen.encode(x=x, y=y))
    size_px = min(SIZE_PX // 2, width)
    return chart.properties(title=title, width=size_px, height=size_px)


def _chart(timed: list[Priced], title: str, width: int) -> altair.LayerChart:
    alt = plot_library()
    points = [_point(one) for one in timed]
    chart = alt.layer(_band(alt, points), _runs(alt, points)).properties(
        title=title,
        width=min(SIZE_PX, width + 60),
        height=SIZE_PX,
        autosize=alt.AutoSizeParams(type="fit", contains="padding"),
    )
    return cast("altair.LayerChart", chart)


def _runs(alt: Any, points: list[dict[str, str | float]]) -> Any:
    log = alt.Scale(type="log", nice=False)
    colours = alt.Color(
        "source:N",
        scale=alt.Scale(scheme="tableau20"),
        legend=alt.Legend(symbolLimit=0, symbolOpacity=1),
    )
    return (
        alt.Chart(alt.InlineData(values=points))
        .mark_circle(size=36, opacity=0.7)
        .encode(
            x=alt.X("measured_s:Q", scale=log, title="measured step time, s"),
            y=alt.Y("predicted_s:Q", scale=log, title="predicted step time, s"),
            color=colours,
            tooltip=[f"{name}:{'NQ'[name.endswith('_s')]}" for name in points[0]],
        )
    )


def _band(alt: Any, points: list[dict[str, str | float]]) -> Any:
    dash = alt.condition("datum.factor == 1", alt.value([1, 0]), alt.value([4, 4]))
    return (
        alt.Chart(alt.InlineData(values=_lines(points)))
        .mark_line(color="gray", strokeWidth=1)
        .encode(x="measured_s:Q", y="predicted_s:Q", detail="factor:N", strokeDash=dash)
    )


def _point(one: Priced) -> dict[str, str | float]:
    plan, run = one.plan, one.run
    degrees = f"tp {plan.tp}, pp {plan.pp}, dp {plan.dp_shard} x {plan.dp_replicate}"
    return {
        "id": printable(run.id),
        "source": printable(run.source_id),
        "model": printable(run.model.name),
        "GPUs": printable(f"{run.hardware.n_gpus} {run.hardware.gpu}"),
        "plan": f"{degrees}, micro-batch {plan.micro_batch}, ZeRO {plan.zero}, "
        f"recompute {plan.recompute}",
        "measured_s": float(f"{run.step_s:.5g}"),
        "predicted_s": float(f"{one.step_s:.5g}"),
    }


def _lines(points: list[dict[str, str | float]]) -> list[dict[str, float]]:
    """Return the ends of the diagonal and of the lines of the band beside it."""
    measured = [float(point["measured_s"]) for point in points]
    return [
        {"measured_s": at, "predicted_s": at * factor, "factor": factor}
        for factor in (1 - BAND, 1, 1 + BAND)
        for at in (min(measured) / 1.2, max(measured) * 1.2)
    ]
