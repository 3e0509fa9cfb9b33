"""Time that a training run loses to failures and checkpoints.

Young 1974, 'A first order approximation to the optimum checkpoint interval'; Daly
2006, 'A higher order estimate of the optimum checkpoint interval for restart dumps'.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from meshwright.cost.whole_model import checkpoint_size
from meshwright.economics.planned_run import PlannedRun
from meshwright.results.training_run import Failures
from meshwright.spec.spec import Checkpoint
from meshwright.spec.units import HOUR_S

PCIE_GB_S = 12.5
"""PCIe bandwidth of a GPU whose port is not known: 0.8 of the 15.75 GB/s of PCIe 3.0
x16 (PCI-SIG)."""


class Days(NamedTuple):
    """Length of a run without failures and with them."""

    ideal: float
    real: float


def failures(run: PlannedRun) -> Failures | None:
    """Return what failures take of a run; None if the spec gives no rate of failures.

    If the spec describes no checkpoints, only the time between failures is known.
    """
    if run.asked.mtbf_gpu_hours is None:
        return None
    mtbf_hours = run.asked.mtbf_gpu_hours / run.plan.world_size
    if run.asked.checkpoint is None:
        return Failures(mtbf_hours=mtbf_hours)
    return _with_checkpoints(run, run.asked.checkpoint, mtbf_hours)


def over_days(failures: Failures, days: Days | None) -> Failures:
    """Return the failures with their number and the days lost over a whole run."""
    if days is None:
        return failures
    expected = days.real * 24 / failures.mtbf_hours
    lost = days.real - days.ideal if failures.goodput is not None else None
    return failures.model_copy(update={"expected": expected, "lost_days": lost})


def _with_checkpoints(
    run: PlannedRun, checkpoint: Checkpoint, mtbf_hours: float
) -> Failures:
    """Return what failures take of a run with checkpoints at Daly's interval.

    A checkpoint has the trained weights and their optimizer state, each part written
    once. After a failure it is read again. An asynchronous checkpoint stops
    training only until host memory has it, but is lost if a failure comes before it is
    written; the next one does not start before that.
    """
    size = checkpoint_size(run.job.spec)
    write_s, mtbf_s = size / (checkpoint.gb_s * 1e9), mtbf_hours * HOUR_S
    is_async = checkpoint.is_async
    stall_s = _copy_to_host_s(run, size) if is_async else write_s
    again_s = restart_s(checkpoint, write_s)
    asked_s = daly_s(stall_s, mtbf_s)
    interval_s = max(asked_s, write_s) if is_async else asked_s
    useful = goodput(interval_s, stall_s, again_s, mtbf_s)
    gain = useful - goodput(SHORT_S, stall_s, again_s, mtbf_s)
    is_short = interval_s < SHORT_S
    is_needless = is_short and gain < LITTLE
    return Failures(
        mtbf_hours=mtbf_hours,
        checkpoint_gb=size / 1e9,
        write_s=write_s,
        stall_s=stall_s,
        young_s=young_s(stall_s, mtbf_s),
        interval_s=interval_s,
        goodput=useful,
        set_by="storage" if is_needless or interval_s > asked_s else "failures",
        failures_alone_s=asked_s,
        storage_share=write_s / (interval_s + stall_s),
        storage_tb_h=size / 1e12 * HOUR_S / (interval_s + stall_s),
        short_gains=gain if is_short else None,
    )


def restart_s(checkpoint: Checkpoint, write_s: float) -> float:
    """Return the seconds from a failure until training goes on where it was saved.

    Reading a checkpoint takes as long as writing it. What was being written behind
    the training is lost, and with it as much work again.
    """
    return checkpoint.restart_s + write_s + (write_s if checkpoint.is_async else 0.0)


def _copy_to_host_s(run: PlannedRun, size: float) -> float:
    """Return the seconds in which every GPU copies its part to its host."""
    topology = run.job.spec.cluster.topology
    host_gb_s = topology.host.pcie_gb_s if topology.host else None
    gb_s = host_gb_s or topology.gpu.pcie_gb_s or PCIE_GB_S
    return size / run.plan.world_size / (gb_s * 1e9)


SHORT_S = 300.0
"""Below this interval a report says whether failures really ask for it."""

LITTLE = 0.01
"""Share of the time that an interval may lose before it is worth shortening."""

MOST_EXPONENT = 700.0
"""Largest exponent of e whose power is still a float."""


def young_s(stall_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between checkpoints: Young 1974, equation 1."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_s(stall_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between checkpoints: Daly 2006, equation 37."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    share = stall_s / (2 * mtbf_s)
    return young_s(stall_s, mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - stall_s


def goodput(
    interval_s: float, stall_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Return the useful share of the time where failures come at random.

    An interval of work and its checkpoint take M e^(R/M) (e^((tau + delta)/M) - 1)
    (Daly 2006, equation 20).
    """
    exponent = (interval_s + stall_s + restart_s) / mtbf_s
    if exponent > MOST_EXPONENT:
        return 0.0
    tries_s = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s)
    return interval_s / (mtbf_s * tries_s)
