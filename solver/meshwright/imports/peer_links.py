"""Adds NVLink and XGMI: direct links of pairs, or a switch over an island of GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from meshwright.imports.default_bandwidths import PEER_LATENCY_US, peer_link_gb_s
from meshwright.imports.graph_builder import GraphBuilder
from meshwright.imports.machine_facts import (
    MachineFacts,
    Pair,
    PeerLinks,
    components,
    pairs_of,
)
from meshwright.spec.gpu import Gpu

SWITCHED_COUNTS = (6, 12, 18)
"""Links of a GPU to NVSwitches: of DGX-2, of A100, and of H100 to B300 machines."""


def add_peer_links(
    machine: MachineFacts, gpu: Gpu, gpu_name: str, graph: GraphBuilder
) -> None:
    """Add all links between GPUs that are not PCIe.

    Raises:
        SpecError: the bandwidth of such a link is unknown.
    """
    peers = machine.peers
    if not peers.counts and not peers.ports:
        return
    gb_s = peer_link_gb_s(gpu, gpu_name, peers.link_gb_s, graph.notes)
    graph.notes.append(
        f"{peers.kind} latency is assumed to be {PEER_LATENCY_US:g} us a link."
    )
    if peers.ports:
        _draw_switch(peers.kind, peers.ports, gb_s, graph)
    islands = components(machine.gpus, peers.counts)
    for island in (island for island in islands if len(island) > 1):
        _draw_island(island, peers, gpu, gb_s, graph)


def _draw_island(
    island: tuple[str, ...],
    peers: PeerLinks,
    gpu: Gpu,
    gb_s: float,
    graph: GraphBuilder,
) -> None:
    counts = {p: peers.counts[p] for p in pairs_of(island) if peers.counts.get(p)}
    per_gpu = {g: [n for p, n in counts.items() if g in p] for g in island}
    is_complete = len(counts) == len(pairs_of(island))
    if is_complete and peers.kind == "XGMI" and len(island) > 2:
        _draw_switch("XGMI", {g: sum(n) for g, n in per_gpu.items()}, gb_s, graph)
        graph.notes.append(
            f"XGMI joins all {len(island)} GPUs directly; it is drawn as a switch, "
            "since collectives use all links of a GPU at once."
        )
    elif is_complete and not peers.is_explicit and _is_switched(per_gpu, gpu):
        _draw_switch("NVLink", {g: max(n) for g, n in per_gpu.items()}, gb_s, graph)
        _note_switch(island, counts, graph)
    else:
        _draw_direct(island, counts, gb_s, graph)
        _note_direct(peers, per_gpu, gpu, gb_s, graph)


def _is_switched(per_gpu: dict[str, list[int]], gpu: Gpu) -> bool:
    """Return whether the cells of a row all count the same links, to a switch.

    They do where the cells of a row add up to more links than the GPU has. Where that
    number is unknown, they do if four GPUs or more have 6, 12 or 18 in every cell.
    Four GPUs of 6 each are an exception: direct meshes of H100 and GH200 boards.
    """
    if gpu.peer_links:
        return all(len(n) > 1 and sum(n) > gpu.peer_links for n in per_gpu.values())
    counts = {count for row in per_gpu.values() for count in row}
    is_mesh = len(per_gpu) == 4 and counts == {6}
    is_usual = len(counts) == 1 and counts <= set(SWITCHED_COUNTS)
    return len(per_gpu) >= 4 and is_usual and not is_mesh


def _draw_switch(
    kind: str, ports: Mapping[str, int], gb_s: float, graph: GraphBuilder
) -> None:
    stem = "nvswitch" if kind == "NVLink" else kind.lower()
    switch = graph.switch(stem, is_counted=stem in graph.switches)
    for name, count in ports.items():
        graph.link(name, switch, count * gb_s, PEER_LATENCY_US)


def _draw_direct(
    island: tuple[str, ...], counts: dict[Pair, int], gb_s: float, graph: GraphBuilder
) -> None:
    for a, b in itertools.combinations(island, 2):
        count = counts.get(frozenset((a, b)))
        if count:
            graph.link(a, b, count * gb_s, PEER_LATENCY_US)


def _note_switch(
    island: tuple[str, ...], counts: dict[Pair, int], graph: GraphBuilder
) -> None:
    spoken = "/".join(f"{count}" for count in sorted(set(counts.values())))
    graph.notes.append(
        f"{spoken} NVLinks in every cell of {len(island)} GPUs are taken as links to "
        "an NVSwitch, not as links of each pair."
    )


def _note_direct(
    peers: PeerLinks,
    per_gpu: dict[str, list[int]],
    gpu: Gpu,
    gb_s: float,
    graph: GraphBuilder,
) -> None:
    most = max(sum(row) for row in per_gpu.values())
    counts_links = peers.link_gb_s is None  # hwloc's numbers are bandwidths
    if counts_links and gpu.peer_links is not None and most > gpu.peer_links:
        graph.notes.append(
            f"A GPU has {most} links to peers here, and {gpu.peer_links} by its data "
            "sheet; they are taken as printed."
        )
    if any(len(row) > 2 for row in per_gpu.values()):
        graph.notes.append(
            f"Links of pairs are drawn one by one; collectives that use all of a GPU's "
            f"at once may reach {most * gb_s:g} GB/s."
        )
