"""What compressed gradients would bring to a run, and what slow GPUs take from it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

from meshwright.economics.compression import (
    ENCODE_BYTES,
    SCHEMES,
    Setting,
    compressed,
    count,
    gradients,
)
from meshwright.economics.ledger import ledger
from meshwright.economics.setup import Setup
from meshwright.results.ledger import Entry
from meshwright.results.training_run import Compression, Scheme, StragglerPrice


def compressions(own: Setup, hours: float | None) -> Iterator[Compression]:
    """Yield the price of each scheme on the stage whose gradients are most exposed.

    `hours` are those of the run.
    """
    stages = [gradients(one.entries) for one in ledger(own.job, own.plan).stages]
    entries = max(stages, key=lambda sums: sum(one.exposed_s for one in sums))
    if entries:
        for scheme in SCHEMES:
            yield _priced(own, scheme, entries, hours)


def _priced(
    own: Setup, scheme: Scheme, entries: list[Entry], hours: float | None
) -> Compression:
    setting, efficiency = _setting(own), own.job.efficiency
    now_s = sum(one.seconds for one in entries)
    exposed_s = sum(one.exposed_s for one in entries)
    then = compressed(scheme, entries, setting, efficiency)
    rate = own.job.spec.cluster.topology.gpu.memory_gb_s * 1e9 * efficiency.memory
    encode_s = ENCODE_BYTES[scheme] * count(entries, setting) / rate
    saved_s = exposed_s - then.exposed_s - encode_s
    saved_hours = hours * saved_s / own.priced.step_s if hours else None
    return Compression(
        scheme=scheme,
        share=then.traffic_s / now_s,
        traffic_s=then.traffic_s,
        exposed_s=then.exposed_s,
        encode_s=encode_s,
        step_s=own.priced.step_s - saved_s,
        saved_days=saved_hours / 24 if saved_hours is not None else None,
        saved_usd=_usd(own, saved_hours),
    )


def _setting(own: Setup) -> Setting:
    return Setting(
        reduced_bytes=own.state.reduced,
        width=own.model.d_model,
        density=own.run.topk_density,
        rank=own.run.powersgd_rank,
        zero=own.plan.zero,
    )


def straggler(own: Setup, hours: float | None) -> StragglerPrice:
    """Return what slow GPUs cost: every step waits for the slowest.

    Of n GPUs whose compute times are spread normally the slowest is expected at the
    quantile (n - 0.375) / (n + 0.25) (Blom 1958, equation 6.10.3).
    """
    asked, gpus = own.run.straggler, own.plan.world_size
    one_slow_s = asked.slowdown * own.compute_s
    slowest = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) if gpus > 1 else 0.0
    more_hours = hours * one_slow_s / own.priced.step_s if hours else None
    return StragglerPrice(
        slowdown=asked.slowdown,
        one_slow_s=one_slow_s,
        one_slow_usd=_usd(own, more_hours),
        jitter=asked.jitter,
        jitter_s=asked.jitter * slowest * own.compute_s,
    )


def _usd(own: Setup, hours: float | None) -> float | None:
    price = own.usd_per_hour
    return price * hours if price is not None and hours is not None else None
