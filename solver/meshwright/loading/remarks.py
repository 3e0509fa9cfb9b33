"""Remarks on numbers that are legal, and that somebody probably meant otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from meshwright.spec.cluster import Cluster
from meshwright.spec.topology import Topology
from meshwright.spec.training import Training

SLACK = 1.02
"""Tolerance for rounded bandwidths in data sheets."""


NIC_GB_S = 100.0
"""The fastest NIC of one GPU: 800 Gbit/s (NVIDIA ConnectX-8 SuperNIC datasheet)."""

SHORT_SEQUENCE, MANY_SEQUENCES = 256, 8
"""Length below which, and times of it from which, a batch looks like the length.

Published runs on short sequences (BERT: 128 tokens, batches of 256) are far from it."""

FEW_COPIES = 8
"""A batch is remarked on that lets so many times fewer copies train than it could."""


def tell_remarks(
    clusters: Iterable[Cluster],
    notes: list[str] | None,
    training: Training | None = None,
) -> None:
    """Add a note for each number that was probably meant otherwise."""
    found: dict[str, None] = {}
    for cluster in clusters if notes is not None else ():
        topologies = [part.topology for part in cluster.parts] or [cluster.topology]
        for topology in topologies:
            found |= dict.fromkeys((*_too_fast(topology), *_bits(topology)))
        if training is not None:
            found |= dict.fromkeys(
                (*_swapped(training), *_odd_batch(cluster, training))
            )
    if notes is not None:
        notes += found


def _too_fast(topology: Topology) -> Iterator[str]:
    """Yield what is said of a link between GPUs that is faster than the GPU's links.

    Vendors give the bandwidth of both directions together; specs need one direction.
    """
    gpu = topology.gpu
    if not gpu.peer_links or not gpu.peer_link_gb_s:
        return
    one_way = gpu.peer_links * gpu.peer_link_gb_s
    for level in topology.levels[:1]:
        if level.uplink != "per_gpu" or level.gb_s <= one_way * SLACK:
            continue
        is_double = level.gb_s <= 2 * one_way * SLACK
        why = "that is both ways together; gb_s is one way" if is_double else "one way"
        yield (
            f"level {level.name}: {level.gb_s:g} GB/s, but {gpu.name} has "
            f"{gpu.peer_links} links of {gpu.peer_link_gb_s:g}, {one_way:g} in all: "
            f"{why}"
        )


def _bits(topology: Topology) -> Iterator[str]:
    """Yield what is said of a network in GB/s whose number is that of its Gbit/s."""
    for level in topology.above[1:]:
        if level.uplink != "shared" and level.gb_s > NIC_GB_S * SLACK:
            yield (
                f"level {level.name}: {level.gb_s:g} GB/s is more than any NIC has "
                f"({8 * NIC_GB_S:g} Gbit/s, {NIC_GB_S:g} GB/s): gb_s is in bytes, and "
                f"{level.gb_s:g} Gbit/s are {level.gb_s / 8:g}"
            )


def _swapped(training: Training) -> Iterator[str]:
    """Yield what is said of very many very short sequences."""
    length, batch = training.seq_len, training.global_batch
    if length < SHORT_SEQUENCE and batch >= MANY_SEQUENCES * length:
        yield (
            f"training.seq_len: {length:,} tokens with a global_batch of {batch:,} "
            "sequences: were they swapped?"
        )


def _odd_batch(cluster: Cluster, training: Training) -> Iterator[str]:
    """Yield what is said of a batch that hardly any number of copies divides."""
    batch, gpus = training.global_batch, cluster.gpus
    most = gcd(batch, gpus)
    if cluster.parts or most * FEW_COPIES > min(batch, gpus):
        return
    unit = max(n for n in range(1, min(batch, gpus) + 1) if gpus % n == 0)
    below = batch // unit * unit
    copies = "one copy of the model alone" if most == 1 else f"at most {most:,} copies"
    yield (
        f"training.global_batch: {batch:,} sequences on {gpus:,} GPUs let {copies} "
        f"train at a time; {below:,} or {below + unit:,} let {unit:,}"
    )
