"""A scatter plot of predicted against measured step times, as PNG and as HTML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.evidence.price import Priced
from meshwright.evidence.reliability import reliability
from meshwright.report.chart import plot_library, save_chart

if TYPE_CHECKING:
    import altair

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
    deciles = [own for own in reliability(priced) if own.peaks_below is not None]
    if not deciles:
        return []
    points = [{"stated": own.high, "observed": own.peaks_below} for own in deciles]
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
        .encode(
            x="measured_s:Q",
            y="predicted_s:Q",
            detail="factor:N",
            strokeDash=dash,
        )
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
