"""A cluster as titled tables and lines."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, Table
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.topology.pairs import MOST_GPUS, Pairs, pair_bandwidths


def topology_sections(cluster: Cluster) -> list[Section]:
    """Return what there is to say about a cluster, from the whole to its parts."""
    parts: list[Section] = [Lines(cluster.topology.name, tuple(_summary(cluster)))]
    if cluster.levels:
        parts.append(_level_table(cluster))
    parts.append(_gpu_table(cluster.topology.gpu))
    if cluster.gpus > 1:
        parts.append(_pair_section(cluster, pair_bandwidths(cluster)))
    parts += _nic_sections(cluster)
    return parts


def _summary(cluster: Cluster) -> Iterator[str]:
    each = cluster.gpus_per_host
    hosts = cluster.gpus / each
    where = f"in {hosts:,.0f} hosts of {each}" if hosts > 1 else "in one host"
    yield f"{cluster.gpus:,} x {cluster.topology.gpu.name}, {where}"
    kinds = [node.kind for node in cluster.topology.nodes]
    if kinds:
        links = len(cluster.topology.links)
        counts = f"{kinds.count('switch')} switches, {kinds.count('nic')} NICs"
        yield f"a graph: {counts}, {links} links"
    host = cluster.topology.host
    if host is not None:
        yield (
            f"host memory {host.memory_gib:,.0f} GiB at {_rate(host.memory_gb_s)} "
            f"GB/s, {_rate(host.pcie_gb_s)} GB/s to each GPU"
        )


def _level_table(cluster: Cluster) -> Table:
    rows, gpus_below = [], 1
    for level in cluster.levels:
        rails = gpus_below if level.uplink == "per_gpu" else 1
        size = f"{level.size:,}"
        own, whole = _rate(level.gb_s * rails / gpus_below), _rate(level.gb_s * rails)
        up = f"{rails:,} x {_rate(level.gb_s)}"
        gpus_below *= level.size
        latency = f"{level.latency_us:g}"
        rows.append((level.name, size, f"{gpus_below:,}", own, up, whole, latency))
    heading = (
        "level", "children", "GPUs", "GB/s per GPU", "uplinks of a child", "GB/s",
        "latency, us",
    )  # fmt: skip
    return Table("Levels, innermost first; GB/s per direction", heading, tuple(rows))


def _gpu_table(gpu: Gpu) -> Table:
    peaks = ", ".join(f"{name} {peak:g}" for name, peak in gpu.peak_tflops if peak)
    rows = [
        ("memory", f"{gpu.memory_gib:,.4g} GiB"),
        ("memory bandwidth", f"{_rate(gpu.memory_gb_s)} GB/s"),
        ("dense matmul peak", f"{peaks} TFLOP/s"),
    ]
    if gpu.peer_links is not None:
        each = f" x {gpu.peer_link_gb_s:g} GB/s" if gpu.peer_link_gb_s else ""
        rows.append(("links to other GPUs", f"{gpu.peer_links}{each}"))
    if gpu.pcie_gb_s is not None:
        rows.append(("PCIe", f"{_rate(gpu.pcie_gb_s)} GB/s"))
    return Table(f"GPU {gpu.name}", ("", "each"), tuple(rows))


def _pair_section(cluster: Cluster, pairs: Pairs) -> Section:
    """Return a matrix, or one line where it is too wide for a page."""
    whole = len(pairs.gpus) == cluster.gpus
    where = "" if whole else " of one host"
    title = f"Widest path between GPUs{where}, through no other GPU, GB/s"
    if len(pairs.gpus) == 1:
        return Lines(title, ("a host has one GPU",))
    if len(pairs.gpus) > MOST_GPUS:
        low, high = pairs.range_gb_s
        span = _rate(low) if low == high else f"{_rate(low)} to {_rate(high)}"
        return Lines(title, (f"{span} between each two of {len(pairs.gpus)}",))
    rows = tuple(
        (gpu, *("-" if value is None else _rate(value) for value in row))
        for gpu, row in zip(pairs.gpus, pairs.gb_s, strict=True)
    )
    return Table(title, ("", *pairs.gpus), rows)


def _nic_sections(cluster: Cluster) -> list[Section]:
    nics = [node for node in cluster.topology.nodes if node.kind == "nic"]
    if nics:
        rows = tuple(
            (node.name, _rate(node.gb_s) if node.gb_s else "-", joined)
            for node in nics
            for joined in [_neighbours(cluster, node.name)]
        )
        return [Table("NICs", ("NIC", "port, GB/s", "links, GB/s"), rows)]
    if len(cluster.levels) < 2 or cluster.gpus_per_host != cluster.levels[0].size:
        return []
    level, each = cluster.levels[1], cluster.levels[0].size
    ports = each if level.uplink == "per_gpu" else 1
    line = f"{ports} a host, {_rate(level.gb_s)} GB/s each, to {level.name}"
    return [Lines("NICs", (line,))]


def _neighbours(cluster: Cluster, name: str) -> str:
    """Return what a node is linked to, and how fast."""
    return ", ".join(
        f"{next(end for end in link.between if end != name)} {_rate(link.gb_s)}"
        for link in cluster.topology.links
        if name in link.between
    )


def _rate(gb_s: float) -> str:
    return f"{gb_s:,.0f}" if gb_s >= 1e3 else f"{gb_s:.4g}"
