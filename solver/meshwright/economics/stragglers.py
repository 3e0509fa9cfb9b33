"""What slow GPUs cost a training run."""

from __future__ import annotations

from statistics import NormalDist

from meshwright.economics.planned_run import PlannedRun
from meshwright.results.training_run import StragglerPrice


def straggler_price(run: PlannedRun, hours: float | None) -> StragglerPrice:
    """Return what slow GPUs cost, since every step waits for the slowest.

    Of n GPUs whose compute times are normally distributed, the slowest is expected at
    the quantile (n - 0.375) / (n + 0.25) (Blom 1958, equation 6.10.3). `hours` is the
    length of the run, None if it is not known.
    """
    asked, gpus = run.asked.straggler, run.plan.world_size
    one_slow_s = asked.slowdown * run.compute_s
    slowest = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) if gpus > 1 else 0.0
    more_hours = hours * one_slow_s / run.priced.step_s if hours else None
    return StragglerPrice(
        slowdown=asked.slowdown,
        one_slow_s=one_slow_s,
        one_slow_usd=run.usd(more_hours),
        jitter=asked.jitter,
        jitter_s=asked.jitter * slowest * run.compute_s,
    )
