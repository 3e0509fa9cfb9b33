"""A picture of a cluster: GPUs, switches and NICs, and the links between them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from meshwright.report.chart import plot_library, save_chart
from meshwright.spec.cluster import Cluster
from meshwright.topology.diagram import Diagram, Line, Point, draw_cluster
from meshwright.topology.host_summary import summarise_hosts

HEIGHT_PX = 520
WIDEST_PX = 7.0

MOST_INCOMPLETE = 4
"""Most kinds of incomplete hosts that are named below the title."""

POINT_KINDS = {
    "gpu": ("GPU", "square", "#2e7d32"),
    "switch": ("switch", "diamond", "#1f4e8c"),
    "nic": ("NIC", "circle", "#b35900"),
    "rest": ("more of them", "triangle-up", "#8a8a8a"),
}
"""Name, shape and colour of every kind of point."""

LETTER_PX = 8
"""Assumed width of a letter; names that would touch are drawn aslant."""

GROUND: dict[str, Any] = {"stroke": "white", "strokeWidth": 4, "strokeJoin": "round"}
BESIDE: dict[str, Any] = {"align": "left", "baseline": "middle", "dx": 12}
BELOW: dict[str, Any] = {"align": "center", "baseline": "top", "dy": 11}
ASLANT: dict[str, Any] = {
    "align": "left",
    "baseline": "top",
    "dx": 2,
    "dy": 11,
    "angle": 40,
}


def draw_topology(cluster: Cluster, path: Path) -> list[Path]:
    """Write a picture of a cluster as `path`.png and `path`.html; return both paths.

    Raises:
        SpecError: a library is missing, or a file is not writable.
    """
    title = f"{cluster.topology.name}: {cluster.gpus:,} x {cluster.topology.gpu.name}"
    return save_chart(lambda width: _chart(cluster, title, width), title, path)


def _chart(cluster: Cluster, title: str, width: int) -> Any:
    alt = plot_library()
    sketch = draw_cluster(cluster)
    names = _names(alt, sketch, width)
    chart = alt.layer(_links(alt, sketch), _points(alt, sketch), names)
    return (
        chart.properties(
            title={"text": title, "subtitle": _subtitle(cluster, sketch)},
            width=width,
            height=HEIGHT_PX,
        )
        .configure_view(stroke=None)
        .configure_axis(grid=False)
    )


def _subtitle(cluster: Cluster, sketch: Diagram) -> list[str]:
    rates = sorted({line.gb_s for line in sketch.lines})
    span = " to ".join(f"{rate:.4g}" for rate in dict.fromkeys((rates[0], rates[-1])))
    part = f"; drawn: {sketch.part}" if sketch.part else ""
    incomplete = [
        f"{kind.where}: {', '.join(kind.lacks)}"
        for kind in summarise_hosts(cluster)
        if kind.lacks
    ]
    return [f"links of {span} GB/s per direction{part}", *incomplete[:MOST_INCOMPLETE]]


def _links(alt: Any, sketch: Diagram) -> Any:
    at = {point.name: point for point in sketch.points}
    values = [_link_row(line, at) for line in sketch.lines]
    width = alt.StrokeWidth(
        "GB/s:Q",
        scale=alt.Scale(type="sqrt", zero=True, range=[0, WIDEST_PX], nice=False),
        legend=alt.Legend(
            values=sorted({row["GB/s"] for row in values}), format=",.4~r"
        ),
    )
    return (
        alt.Chart(alt.InlineData(values=values))
        .mark_rule(color="#9aa7b5", opacity=0.8, strokeCap="round")
        .encode(
            x=_axis(alt, "x"),
            y=_axis(alt, "y"),
            x2="x2:Q",
            y2="y2:Q",
            strokeWidth=width,
            tooltip=["link:N", "GB/s:Q", "side by side:Q", "latency, us:Q"],
        )
    )


def _link_row(line: Line, at: dict[str, Point]) -> dict[str, Any]:
    a, b = (at[end] for end in line.ends)
    return {
        "x": a.x, "y": a.y, "x2": b.x, "y2": b.y,
        "link": f"{a.name} - {b.name}",
        "GB/s": float(f"{line.gb_s:.4g}"),
        "side by side": line.rails,
        "latency, us": line.latency_us,
    }  # fmt: skip


def _axis(alt: Any, name: str) -> Any:
    return getattr(alt, name.upper())(
        f"{name}:Q", axis=None, scale=alt.Scale(domain=[-0.04, 1.04], nice=False)
    )


def _points(alt: Any, sketch: Diagram) -> Any:
    known = [
        POINT_KINDS[kind]
        for kind in POINT_KINDS
        if any(p.kind == kind for p in sketch.points)
    ]
    names, shapes, colours = (list(column) for column in zip(*known, strict=True))
    return (
        alt.Chart(alt.InlineData(values=[_point_row(p) for p in sketch.points]))
        .mark_point(size=220, filled=True, opacity=1)
        .encode(
            x=_axis(alt, "x"),
            y=_axis(alt, "y"),
            shape=alt.Shape("kind:N", scale=alt.Scale(domain=names, range=shapes)),
            color=alt.Color("kind:N", scale=alt.Scale(domain=names, range=colours)),
            tooltip=["name:N", "kind:N", "in all:Q"],
        )
    )


def _point_row(point: Point) -> dict[str, Any]:
    return {
        "x": point.x, "y": point.y,
        "name": point.name,
        "kind": POINT_KINDS[point.kind][0],
        "in all": point.count,
        "label": _label(point),
    }  # fmt: skip


def _label(point: Point) -> str:
    if point.kind == "rest":
        return f"{point.count:,} more"
    if point.kind == "switch" and point.count > 1:
        return f"{point.name} (of {point.count:,})"
    return point.name


def _names(alt: Any, sketch: Diagram, width: int) -> Any:
    """Write each name beside its switch or below its point, on a white ground."""
    rows = Counter(point.y for point in sketch.points)
    places: dict[str, list[Point]] = {"beside": [], "below": [], "aslant": []}
    for point in sketch.points:
        room_px = width / rows[point.y]
        is_crowded = len(_label(point)) * LETTER_PX > room_px
        is_switch = point.kind == "switch" and not is_crowded
        place = "beside" if is_switch else "aslant" if is_crowded else "below"
        places[place].append(point)
    layers = [
        _text(alt, places[place], {**style, **ground})
        for place, style in (("beside", BESIDE), ("below", BELOW), ("aslant", ASLANT))
        for ground in (GROUND, {})
        if places[place]
    ]
    return alt.layer(*layers)


def _text(alt: Any, points: list[Point], style: dict[str, Any]) -> Any:
    return (
        alt.Chart(alt.InlineData(values=[_point_row(point) for point in points]))
        .mark_text(fontSize=12, **style)
        .encode(x=_axis(alt, "x"), y=_axis(alt, "y"), text="label:N")
    )
