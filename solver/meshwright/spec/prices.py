"""Price and power of the GPUs of a cluster, whose parts may be unlike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    from meshwright.spec.spec import Spec


def usd_per_hour(cluster: Cluster, gpu_hour_price: float | None) -> float | None:
    """Return the price of all GPUs for an hour; None if a price is not known."""
    return _total(cluster, lambda gpu: gpu_hour_price or gpu.hour_usd)


def watts(cluster: Cluster) -> float | None:
    """Return the power of all GPUs at their limit; None if a limit is not known."""
    return _total(cluster, lambda gpu: gpu.power_w)


def per_mtoken(per_hour: float, tokens_per_s: float) -> float:
    """Return an amount per hour as one per million tokens."""
    return per_hour / (tokens_per_s * HOUR_S / 1e6)


def prices_per_mtoken(spec: Spec, tokens_per_s: float) -> dict[str, float]:
    """Return what a million tokens cost in USD and in kWh, as far as it is known."""
    cluster = spec.cluster
    usd, drawn_w = usd_per_hour(cluster, spec.run.gpu_hour_price), watts(cluster)
    per_hour = {
        "usd_per_mtoken": usd,
        "kwh_per_mtoken": None if drawn_w is None else drawn_w / 1e3,
    }
    return {
        name: per_mtoken(amount, tokens_per_s)
        for name, amount in per_hour.items()
        if amount is not None
    }


def per_token(spec: Spec, tokens_per_s: float) -> dict[str, float]:
    """Return the prices of a million tokens and the days of the run, where known.

    All of them are proportional to the time of a token. Days leave failures out.
    """
    known = prices_per_mtoken(spec, tokens_per_s)
    if spec.run.tokens is not None:
        known["train_days"] = spec.run.tokens / tokens_per_s / DAY_S
    return known


def _total(cluster: Cluster, of: Callable[[Gpu], float | None]) -> float | None:
    """Return the sum of a quantity over all GPUs; None if a GPU lacks it."""
    parts = [(part.gpus, part.topology.gpu) for part in cluster.parts]
    total = 0.0
    for count, gpu in parts or [(cluster.gpus, cluster.topology.gpu)]:
        amount = of(gpu)
        if amount is None:
            return None
        total += count * amount
    return total
