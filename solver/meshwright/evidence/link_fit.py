"""Fits bandwidth and latency of a link to times that nccl-tests measured over it.

The formulas are those of `cost.traffic`, so that a topology with the fit prices the
collective as it was measured. Small messages use other protocols (LL and LL128: lower
latency, a part of the bandwidth), which two numbers cannot describe beside large ones.
Training moves large messages: half of the sizes from 1 MiB on must be predicted well,
at the bandwidth of the largest; among such fits, all sizes count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.traffic import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    send_s,
)
from meshwright.errors import SpecError
from meshwright.imports.nccl_tests import NcclLog, bus_factor
from meshwright.plans.columns import Floats, Ints
from meshwright.spec.topology import ScaleOut

LARGE_BYTES = 2**20
WELL = 0.095
"""Largest relative error for half of the large sizes, if any fit keeps it."""

SMALL_WEIGHT = 0.5
"""Weight of a size below 1 MiB; larger sizes have weight 1."""

LEAST_TOLD = 0.1
"""Share of the time of the smallest size that latency must have to be fitted."""

SHARES = np.linspace(0.9, 1.05, 61)
"""Candidates for the bandwidth, in parts of the best seen. The best still has latency
in it, so that the link itself may be faster."""

MOST_SIZES = 200
"""Most sizes that are fitted; of a longer log so many, evenly spread."""

STEPS_S = np.geomspace(1e-8, 1e-2, 361)
"""Candidates for the latency of a step: 4 % apart."""


@dataclass(frozen=True)
class LinkFit:
    """A link between equal members, as one collective over it was measured."""

    gb_s: float
    """Bandwidth of a ring per direction: bus bandwidth of nccl-tests, 1e9 bytes/s."""
    latency_us: float
    """Half of the latency of a step, which goes up an uplink and down another: of a
    ring the mean of its steps, of all else the longest way."""
    median_error: float
    """Median of |predicted / measured - 1| from 1 MiB on, or of all smaller sizes."""
    errors: tuple[tuple[int, float], ...]
    """By size in bytes, predicted / measured - 1."""
    op: str
    ranks: int
    nodes: int | None
    name: str = ""
    """Name of the log."""

    @property
    def is_ring(self) -> bool:
        """Return whether each byte makes the n - 1 hops of a ring."""
        return self.op in RINGS

    @property
    def is_bandwidth_told(self) -> bool:
        """Return whether a size is so large that its time is mostly bandwidth."""
        return max(size for size, _ in self.errors) >= LARGE_BYTES

    @property
    def is_latency_told(self) -> bool:
        """Return whether the smallest size spends a tenth of its time on latency."""
        size_bytes = min(size for size, _ in self.errors)
        whole_s, free = predicted_s(self, size_bytes), replace(self, latency_us=0.0)
        return predicted_s(free, size_bytes) < (1 - LEAST_TOLD) * whole_s


def predicted_s(fit: LinkFit, size_bytes: float) -> float:
    """Return the seconds of the fitted collective over a buffer of this size."""
    step_s = 2 * fit.latency_us * 1e-6
    seconds = _seconds(fit, np.array([size_bytes]), 1 / (fit.gb_s * 1e9), step_s)
    return float(seconds[0])


def fit_log(log: NcclLog) -> LinkFit:
    """Return the link that the out-of-place times of a log speak of.

    At no size of the log is the predicted bus bandwidth above the best measured.

    Raises:
        SpecError: there is no formula for the test.
    """
    if log.op not in FORMULAS:
        accepted = ", ".join(FORMULAS)
        raise SpecError(f"{log.name}: op: {log.op}: no formula; accepted: {accepted}")
    sizes = np.array([float(row.size_bytes) for row in log.timed])
    measured_s = np.array([row.time_s for row in log.timed])
    gb_s, step_s = _search(log, sizes, measured_s)
    return _fitted(log, sizes, measured_s, gb_s, step_s)


def _fitted(
    run: NcclLog | LinkFit,
    sizes: Floats,
    measured_s: Floats,
    gb_s: float,
    step_s: float,
) -> LinkFit:
    """Return the link of a log at a bandwidth and a latency, with its errors."""
    errors = _seconds(run, sizes, 1 / (gb_s * 1e9), step_s) / measured_s - 1
    large = errors[sizes >= LARGE_BYTES]
    return LinkFit(
        gb_s=gb_s,
        latency_us=step_s / 2 * 1e6,
        median_error=float(np.median(np.abs(large if len(large) else errors))),
        errors=tuple(zip(sizes.astype(int).tolist(), errors.tolist(), strict=True)),
        op=run.op,
        ranks=run.ranks,
        nodes=run.nodes,
        name=run.name,
    )


def at_bandwidth(fit: LinkFit, gb_s: float) -> LinkFit:
    """Return the fit of the same log with this bandwidth, and the latency it leaves."""
    sizes = np.array([float(size) for size, _ in fit.errors])
    fitted_s = _seconds(fit, sizes, 1 / (fit.gb_s * 1e9), 2 * fit.latency_us * 1e-6)
    measured_s = fitted_s / (1 + np.array([error for _, error in fit.errors]))
    some = _spread(sizes)
    predicted = _seconds(fit, sizes[some], 1 / (gb_s * 1e9), STEPS_S[:, None])
    are_above = np.zeros(len(STEPS_S), dtype=bool)
    is_large = sizes >= LARGE_BYTES
    (column,) = _best(predicted / measured_s[some], is_large[some], are_above)
    return _fitted(fit, sizes, measured_s, gb_s, float(STEPS_S[column]))


def _spread(sizes: Floats) -> NDArray[np.intp]:
    """Return the places of at most MOST_SIZES sizes, evenly spread by size."""
    spread = np.linspace(0, len(sizes) - 1, min(len(sizes), MOST_SIZES))
    order: NDArray[np.intp] = np.argsort(sizes)
    return np.take(order, spread.astype(int))


def _search(log: NcclLog, sizes: Floats, measured_s: Floats) -> tuple[float, float]:
    """Return the bandwidth and the latency of a step among all candidates."""
    rates = bus_factor(log.op, log.ranks) * sizes / 1e9
    best_gb_s = float((rates / measured_s).max())
    some = _spread(sizes)
    gb_s = (best_gb_s * SHARES)[:, None, None]
    predicted = _seconds(log, sizes[some], 1 / (gb_s * 1e9), STEPS_S[None, :, None])
    is_above = (rates[some] / predicted).max(axis=-1) > best_gb_s
    ratios, is_large = predicted / measured_s[some], sizes[some] >= LARGE_BYTES
    row, column = _best(ratios, is_large, is_above)
    return float(best_gb_s * SHARES[row]), float(STEPS_S[column])


def _best(
    ratios: Floats, is_large: NDArray[np.bool_], is_above: NDArray[np.bool_]
) -> tuple[int, ...]:
    """Return the candidate with the least error, among those that serve large sizes.

    Errors are on the logarithm and count by their size, not its square: outliers and
    humps pull little.
    """
    counted = is_large if is_large.any() else ~is_large
    median = np.median(np.abs(ratios - 1)[..., counted], axis=-1)
    median = np.where(is_above, np.inf, median)
    weights = np.where(counted, 1.0, SMALL_WEIGHT)
    mean = (np.abs(np.log(ratios)) * weights).sum(axis=-1)
    mean = np.where(median <= max(WELL, median.min()), mean, np.inf)
    return tuple(map(int, np.unravel_index(mean.argmin(), mean.shape)))


def _seconds(
    run: NcclLog | LinkFit,
    sizes: Floats,
    s_per_byte: Floats | float,
    step_s: Floats | float,
) -> Floats:
    shape = (sizes, np.array(run.ranks), np.asarray(s_per_byte), np.asarray(step_s))
    return FORMULAS[run.op](*shape)


def _passed_on(sizes: Floats, _n: Ints, s_per_byte: Floats, step_s: Floats) -> Floats:
    """Return the seconds in which every link passes on the whole buffer once."""
    return send_s(sizes, s_per_byte, step_s)


RINGS = ("all_reduce", "all_gather", "reduce_scatter")
"""Tests whose latency is that of the mean hop (`topology.fabric.mean_hop_s`)."""

FORMULAS = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "alltoall": all_to_all_s,
    "sendrecv": _passed_on,
    "broadcast": _passed_on,
    "reduce": _passed_on,
}


def put_share(
    level: dict[str, Any], declared: ScaleOut, gb_s: float, fit: LinkFit
) -> Iterable[str]:
    """Put the share of a rate that collectives reach on a level; yield notes.

    It is never above the rate: where switches reduce, or an algorithm sends less than
    a ring, one collective seems faster than its links, and no other one is.
    """
    name = level["name"]
    share = level["bus_share"] = min(rounded(gb_s / declared.gb_s), 1.0)
    if gb_s > declared.gb_s:
        yield (
            f"{name}: {fit.name} shows {gb_s:.4g} GB/s, above the rate of "
            f"{declared.gb_s:.4g}, which is kept: switches that reduce, or an "
            "algorithm that sends less than a ring, look faster than links are. Set "
            "gb_s where the links themselves are faster."
        )
    reached_gb_s = min(gb_s, declared.gb_s)
    yield (
        f"{name}: bus_share {declared.bus_share:g} -> {share:g}, {reached_gb_s:.4g} of "
        f"{declared.gb_s:.4g} GB/s, fitted to {fit.op} over {fit.ranks} GPUs in "
        f"{fit.name}, {fit.median_error:.1%} off (median from 1 MiB on)."
    )


def rounded(value: float) -> float:
    """Return a number with the four digits that files hold."""
    return float(f"{value:.4g}")
