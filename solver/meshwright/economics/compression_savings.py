"""How much time and money compressed gradients would save a training run."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.economics.compression import (
    ENCODE_BYTES,
    SCHEMES,
    GradientShape,
    compressed_traffic,
    gradient_entries,
    gradients_per_gpu,
)
from meshwright.economics.ledger import ledger
from meshwright.economics.planned_run import PlannedRun
from meshwright.results.ledger import LedgerEntry
from meshwright.results.training_run import Compression, Scheme


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
