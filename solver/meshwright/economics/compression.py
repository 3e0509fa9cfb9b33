"""Time and money that compressed gradients save under data parallelism.

A compression scheme changes the bytes on the links and adds passes over the gradients.
Its effect on model quality is not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from meshwright.cost.job import Efficiency
from meshwright.economics.ledger import ledger
from meshwright.economics.planned_run import PlannedRun
from meshwright.results.comparison import LedgerEntry
from meshwright.results.training_run import Compression, Scheme

SCHEMES: tuple[Scheme, ...] = ("fp16", "1-bit", "top-k", "powersgd")

ENCODE_BYTES: dict[Scheme, float] = {
    "fp16": 12.0,
    "1-bit": 16.0,
    "top-k": 16.0,
    "powersgd": 24.0,
}
"""Bytes of memory that a scheme reads and writes, per gradient and step.

fp16 casts there and back, 4 + 2 each. 1-bit reads gradient and error and writes error
and result, 4 each (Tang et al. 2021, 1-bit Adam, algorithm 1); so does top-k, which
selects on the way (Lin et al. 2018, Deep Gradient Compression, algorithm 4). PowerSGD
reads the sum of both twice more for its two products (Vogels et al. 2019, algorithm 1).
"""


class GradientShape(NamedTuple):
    """The numbers that the size of compressed gradients depends on."""

    reduced_bytes: float
    """Bytes of one gradient as it is sent without compression."""
    width: int
    """Rows and columns of a weight matrix, which is taken as square."""
    density: float
    """Share of the gradients that top-k sends."""
    rank: int
    """Rank of PowerSGD's factors."""
    zero: int
    """ZeRO stage; at 0 the ring goes round twice, to add up and to hand out."""


class GradientTraffic(NamedTuple):
    """Seconds per step that gradients are on the links, and the exposed part."""

    traffic_s: float
    exposed_s: float


def compression_savings(run: PlannedRun, hours: float | None) -> Iterator[Compression]:
    """Yield what each scheme saves, by the stage whose gradients are most exposed.

    `hours` is the length of the run, None if it is not known.
    """
    by_stage = [
        gradient_entries(stage.entries) for stage in ledger(run.job, run.plan).stages
    ]
    entries = max(
        by_stage, key=lambda sums: math.fsum(entry.exposed_s for entry in sums)
    )
    if entries:
        for scheme in SCHEMES:
            yield _savings(run, scheme, entries, hours)


def _savings(
    run: PlannedRun, scheme: Scheme, entries: list[LedgerEntry], hours: float | None
) -> Compression:
    shape, efficiency = _gradient_shape(run), run.job.efficiency
    now_s = math.fsum(entry.seconds for entry in entries)
    exposed_now_s = math.fsum(entry.exposed_s for entry in entries)
    after = compressed_traffic(scheme, entries, shape, efficiency)
    bytes_per_s = run.job.spec.cluster.topology.gpu.memory_gb_s * 1e9
    rate = bytes_per_s * efficiency.memory
    encode_s = ENCODE_BYTES[scheme] * gradients_per_gpu(entries, shape) / rate
    saved_s = exposed_now_s - after.exposed_s - encode_s
    saved_hours = hours * saved_s / run.priced.step_s if hours else None
    return Compression(
        scheme=scheme,
        share=after.traffic_s / now_s,
        traffic_s=after.traffic_s,
        exposed_s=after.exposed_s,
        encode_s=encode_s,
        step_s=run.priced.step_s - saved_s,
        saved_days=saved_hours / 24 if saved_hours is not None else None,
        saved_usd=run.usd(saved_hours),
    )


def _gradient_shape(run: PlannedRun) -> GradientShape:
    return GradientShape(
        reduced_bytes=run.state.reduced,
        width=run.model.d_model,
        density=run.asked.topk_density,
        rank=run.asked.powersgd_rank,
        zero=run.plan.zero,
    )


def gradient_entries(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries of a ledger that send gradients of weights."""
    parts = ("dp", "zero")
    return [one for one in entries if one.part in parts and "gradients" in one.where]


def bytes_share(scheme: Scheme, entry: LedgerEntry, shape: GradientShape) -> float:
    """Return the bytes of a compressed collective, as a share of those now; at most 1.

    - fp16: 2 bytes a gradient;
    - 1-bit: one bit, and scales that do not count (Seide et al. 2014, section 3);
    - powersgd: two factors of rank r for d x d weights, fp32: 2 r / d of 4 bytes;
    - top-k: 4 bytes of value and 4 of index, which an all-gather collects from all n
      ranks: n k 8 bytes, in place of a ring's one or two ways round.
    """
    is_both_ways = entry.operation == "all_reduce" or shape.zero == 0
    gathered = entry.ranks * shape.density * 8
    per_gradient = {
        "fp16": 2.0,
        "1-bit": 1 / 8,
        "powersgd": 4 * 2 * shape.rank / shape.width,
        "top-k": gathered / 2 if is_both_ways else gathered,
    }[scheme]
    return min(per_gradient / shape.reduced_bytes, 1.0)


def compressed_traffic(
    scheme: Scheme,
    entries: Iterable[LedgerEntry],
    shape: GradientShape,
    efficiency: Efficiency,
) -> GradientTraffic:
    """Return the traffic of gradients under a scheme.

    As many seconds stay hidden as are hidden now, but no larger share than the
    efficiency lets overlap.
    """
    overlap = {"dp": efficiency.grad_overlap, "zero": efficiency.gather_overlap}
    traffic_s = exposed_s = 0.0
    for entry in entries:
        sent_s = entry.seconds * bytes_share(scheme, entry, shape)
        hidden_s = min(overlap[entry.part] * sent_s, entry.seconds - entry.exposed_s)
        traffic_s += sent_s
        exposed_s += sent_s - hidden_s
    return GradientTraffic(traffic_s, exposed_s)


def gradients_per_gpu(entries: Iterable[LedgerEntry], shape: GradientShape) -> float:
    """Return how many gradients a GPU reduces in a step."""
    reductions = (entry for entry in entries if entry.operation != "all_gather")
    reduced = math.fsum(entry.bytes * entry.count_per_step for entry in reductions)
    return reduced / shape.reduced_bytes
