"""What failures and checkpoints take of a run."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.economics.faults import LITTLE, SHORT_S, daly_s, goodput, young_s
from meshwright.economics.setup import Setup
from meshwright.results.training_run import Failures
from meshwright.spec.run import Checkpoint
from meshwright.spec.units import HOUR_S

PCIE_GB_S = 12.5
"""Of a GPU whose port is not known: 0.8 of the 15.75 of PCIe 3.0 x16 (PCI-SIG)."""


class Days(NamedTuple):
    """Of the run, without failures and with them."""

    ideal: float
    real: float


def failures(own: Setup) -> Failures | None:
    """Return how failures cut a run up; None where no time between them is given.

    Without a checkpoint section nothing is known of what each takes.
    """
    run = own.run
    if run.mtbf_gpu_hours is None:
        return None
    mtbf_hours = run.mtbf_gpu_hours / own.plan.world_size
    if run.checkpoint is None:
        return Failures(mtbf_hours=mtbf_hours)
    return _checkpointed(own, run.checkpoint, mtbf_hours)


def _checkpointed(own: Setup, how: Checkpoint, mtbf_hours: float) -> Failures:
    """Return the same with checkpoints at Daly's interval.

    A checkpoint has weights and optimizer of the whole model, each part written once.
    After a failure it is read again. An asynchronous one stops training only until
    host memory has it, but is lost if the failure comes before it is written; the next
    one does not start before.
    """
    size = own.params * (own.state.weights + own.state.optimizer)
    write_s, mtbf_s = size / (how.gb_s * 1e9), mtbf_hours * HOUR_S
    stall_s = _snapshot_s(own, size) if how.is_async else write_s
    restart_s = how.restart_s + write_s + (write_s if how.is_async else 0.0)
    asked_s = daly_s(stall_s, mtbf_s)
    interval_s = max(asked_s, write_s) if how.is_async else asked_s
    useful = goodput(interval_s, stall_s, restart_s, mtbf_s)
    gains = useful - goodput(SHORT_S, stall_s, restart_s, mtbf_s)
    is_short = interval_s < SHORT_S
    is_needless = is_short and gains < LITTLE
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
        short_gains=gains if is_short else None,
    )


def _snapshot_s(own: Setup, size: float) -> float:
    """Return the seconds in which each GPU copies its part to its host."""
    topology = own.job.spec.cluster.topology
    host_gb_s = topology.host.pcie_gb_s if topology.host else None
    gb_s = host_gb_s or topology.gpu.pcie_gb_s or PCIE_GB_S
    return size / own.plan.world_size / (gb_s * 1e9)


def over_days(own: Failures, days: Days | None) -> Failures:
    """Return failures with their number and what they take over the days of a run."""
    if days is None:
        return own
    expected = days.real * 24 / own.mtbf_hours
    lost = days.real - days.ideal if own.goodput is not None else None
    return own.model_copy(update={"expected": expected, "lost_days": lost})
