"""A cluster as titled tables and lines, as data, and as a drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.report.chart import plot_library, save_chart
from meshwright.report.tables import Lines, Section, Table
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.topology import Node
from meshwright.topology.diagram import (
    MOST_GPUS,
    Diagram,
    HostSummary,
    Line,
    PairBandwidths,
    Point,
    Uplinks,
    draw_cluster,
    left_out,
    levels_above,
    pair_bandwidths,
    summarise_hosts,
    why_left_out,
)

UPLINKS = {"per_gpu": "per GPU", "per_nic": "per NIC", "shared": "per host"}


def topology_sections(cluster: Cluster) -> list[Section]:
    """Return a description of a cluster, from the whole to its parts."""
    if cluster.parts:
        return [*_joined_parts(cluster)]
    kinds = summarise_hosts(cluster)
    parts: list[Section] = [
        Lines(cluster.topology.name, tuple(_summary(cluster, kinds)))
    ]
    if levels_above(cluster):
        parts.append(_level_table(cluster))
    if any(kind.lacks for kind in kinds) or left_out(cluster):
        parts.append(Lines("Hosts", tuple(_host_lines(cluster, kinds))))
    parts.append(_gpu_table(cluster.topology.gpu))
    pairs = pair_bandwidths(cluster)
    if len(pairs.gpus) > 1:
        parts.append(_pair_section(cluster, kinds, pairs))
    if any(node.kind == "nic" for node in cluster.topology.nodes):
        parts.append(_nic_table(kinds[0]))
    return parts


def _joined_parts(cluster: Cluster) -> Iterator[Section]:
    """Yield how the unlike parts are joined, then a description of every part."""
    join = cluster.join
    assert join is not None
    yield Lines(
        cluster.topology.name,
        (
            f"{cluster.gpus:,} GPUs, joined by {join.name}: {join.gb_s:g} GB/s "
            f"{UPLINKS[join.uplink]}, {join.latency_us:g} us",
        ),
    )
    for part in cluster.parts:
        yield from topology_sections(Cluster(topology=part.topology, count=part.count))


def topology_data(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as data: rates per direction, links of the first host."""
    kinds, pairs = summarise_hosts(cluster), pair_bandwidths(cluster)
    alone = [
        Cluster(topology=part.topology, count=part.count) for part in cluster.parts
    ]
    return {
        "name": cluster.topology.name,
        "gpu": cluster.topology.gpu.name,
        "gpus": cluster.gpus,
        "levels": [
            {"name": level.name, "size": level.size} | level.model_dump()
            for level in (uplinks.level for uplinks in levels_above(cluster))
        ],
        "hosts": [
            {
                "kind": kind.name,
                "count": kind.size,
                "gpus": kind.gpus,
                "nics": kind.nics,
                "lacks": kind.lacks,
            }
            for kind in kinds
        ],
        "pairs": {"gpus": pairs.gpus, "gb_s": pairs.gb_s},
        "left_out": left_out(cluster),
        "parts": [topology_data(part) for part in alone],
        "links": [link.model_dump() for link in kinds[0].machine.links],
    }


def _summary(cluster: Cluster, kinds: tuple[HostSummary, ...]) -> Iterator[str]:
    topology = cluster.topology
    yield f"{cluster.gpus:,} x {topology.gpu.name}, {_hosts_text(cluster, kinds)}"
    if topology.nodes:
        nodes = Counter(node.kind for node in topology.nodes)
        counts = f"{nodes['switch']} x switch, {nodes['nic']} x NIC"
        yield f"nodes and links: {counts}, {len(topology.links)} links"
    if topology.scale_out is not None and cluster.count == 1:
        network = topology.scale_out
        yield (
            f"{network.name} joins several machines: {_rate(network.gb_s)} GB/s "
            f"{UPLINKS[network.uplink]}, {network.latency_us:g} us"
        )
    host = topology.host
    if host is not None:
        yield (
            f"host memory {host.memory_gib:,.0f} GiB at {_rate(host.memory_gb_s)} "
            f"GB/s, {_rate(host.pcie_gb_s)} GB/s to each GPU"
        )


def _hosts_text(cluster: Cluster, kinds: tuple[HostSummary, ...]) -> str:
    count = sum(kind.size for kind in kinds)
    gpus = kinds[0].gpus
    if not cluster.is_tree and not cluster.hosts.outer:
        hosts = Counter(n.host for n in kinds[0].machine.nodes if n.kind == "gpu")
        count, gpus = len(hosts), max(hosts.values())
    return f"in {count:,} hosts of {gpus}" if count > 1 else "in one host"


def _host_lines(cluster: Cluster, kinds: tuple[HostSummary, ...]) -> Iterator[str]:
    for kind in kinds:
        yield f"{kind.where}: {', '.join(kind.lacks) or 'whole'}"
    for hosts, why in why_left_out(cluster):
        yield f"{hosts}: left out, {why}"


def _level_table(cluster: Cluster) -> Table:
    heading = (
        "level", "children", "GPUs", "GB/s per GPU", "uplinks of a child", "GB/s",
        "latency, us",
    )  # fmt: skip
    levels = "Levels" if cluster.is_tree else "Levels above hosts"
    rows = tuple(_level_row(uplinks) for uplinks in levels_above(cluster))
    return Table(f"{levels}, innermost first; GB/s per direction", heading, rows)


def _level_row(uplinks: Uplinks) -> tuple[str, ...]:
    level, whole_gb_s = uplinks.level, uplinks.level.gb_s * uplinks.rails
    return (
        level.name,
        f"{level.size:,}",
        f"{uplinks.gpus * level.size:,}",
        _rate(whole_gb_s / uplinks.gpus),
        f"{uplinks.rails:,} x {_rate(level.gb_s)}",
        _rate(whole_gb_s),
        f"{level.latency_us:g}",
    )


def _gpu_table(gpu: Gpu) -> Table:
    peaks = ", ".join(f"{name} {peak:g}" for name, peak in gpu.peak_tflops if peak)
    rows = [
        ("memory", f"{gpu.memory_gib:,.4g} GiB"),
        ("memory bandwidth", f"{_rate(gpu.memory_gb_s)} GB/s"),
        ("dense matmul peak", f"{peaks} TFLOP/s"),
    ]
    if gpu.peer_links is not None:
        rate = f" x {gpu.peer_link_gb_s:g} GB/s" if gpu.peer_link_gb_s else ""
        rows.append(("links to other GPUs", f"{gpu.peer_links}{rate}"))
    if gpu.pcie_gb_s is not None:
        rows.append(("PCIe", f"{_rate(gpu.pcie_gb_s)} GB/s"))
    return Table(f"GPU {gpu.name}", ("", "each"), tuple(rows))


def _pair_section(
    cluster: Cluster, kinds: tuple[HostSummary, ...], pairs: PairBandwidths
) -> Section:
    """Return a matrix of bandwidths; one line if it is too wide or all are equal."""
    whole = len(pairs.gpus) == cluster.gpus
    where = "" if whole else f" of {kinds[0].name}" if len(kinds) > 1 else " of a host"
    title = f"Between two GPUs{where}, GB/s per direction"
    if cluster.topology.nodes:
        title += "; through a third only where there is no other way"
    low, high = pairs.range_gb_s
    if len(pairs.gpus) > MOST_GPUS or low == high:
        span = _rate(low) if low == high else f"{_rate(low)} to {_rate(high)}"
        return Lines(title, (f"{span} between any two of {len(pairs.gpus)}",))
    rows = tuple(
        (gpu, *("-" if value is None else _rate(value) for value in row))
        for gpu, row in zip(pairs.gpus, pairs.gb_s, strict=True)
    )
    return Table(title, ("", *pairs.gpus), rows)


def _nic_table(first: HostSummary) -> Table:
    rows = tuple(
        (node.name, _rate(node.gb_s) if node.gb_s else "-", _links_text(first, node))
        for node in first.machine.nodes
        if node.kind == "nic"
    )
    return Table("NICs of a host", ("NIC", "port, GB/s", "links, GB/s"), rows)


def _links_text(first: HostSummary, node: Node) -> str:
    """Return the nodes that a node is linked to, with the bandwidths."""
    return ", ".join(
        f"{next(end for end in link.between if end != node.name)} {_rate(link.gb_s)}"
        for link in first.machine.links
        if node.name in link.between
    )


def _rate(gb_s: float) -> str:
    return f"{gb_s:,.0f}" if gb_s >= 1e3 else f"{gb_s:.4g}"


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
