"""What GPUs cost and draw, those of unlike parts too."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.units import HOUR_S


def usd_per_hour(cluster: Cluster, gpu_hour_price: float | None) -> float | None:
    """Return the USD of all GPUs for an hour; None where no price is known."""
    return _summed(cluster, lambda gpu: gpu_hour_price or gpu.hour_usd)


def watts(cluster: Cluster) -> float | None:
    """Return what all GPUs draw at their power limit, W; None where it is not known."""
    return _summed(cluster, lambda gpu: gpu.tdp_w)


def per_mtoken(per_hour: float, tokens_per_s: float) -> float:
    """Return an amount per hour as one per million tokens."""
    return per_hour / (tokens_per_s * HOUR_S / 1e6)


def _summed(cluster: Cluster, of: Callable[[Gpu], float | None]) -> float | None:
    parts = [(part.gpus, part.topology.gpu) for part in cluster.parts]
    total = 0.0
    for count, gpu in parts or [(cluster.gpus, cluster.topology.gpu)]:
        each = of(gpu)
        if each is None:
            return None
        total += count * each
    return total
