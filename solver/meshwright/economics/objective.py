"""What the levels of an objective are worth on a cluster."""

from __future__ import annotations

from meshwright.errors import SpecError
from meshwright.spec.cluster import Cluster
from meshwright.spec.objective import Level
from meshwright.spec.prices import usd_per_hour, watts
from meshwright.spec.spec import Spec


def level_value(level: Level, spec: Spec, cluster: Cluster, step_s: float) -> float:
    """Return what a level minimises, up to a factor that no choice changes.

    Every value but the number of GPUs is proportional to the time of a sequence: on one
    cluster and batch the fastest plan is the cheapest. Batches are compared by that
    time too, since a step of fewer sequences is no faster way to train.

    Raises:
        SpecError: a price or a power limit is not known.
    """
    if level.metric == "gpus":
        return float(cluster.gpus)
    sequence_s = step_s / spec.training.global_batch
    if level.metric == "usd_per_mtoken":
        price = usd_per_hour(cluster, spec.run.gpu_hour_price)
        return sequence_s * _known(price, "run.gpu_hour_price or hour_usd of the GPU")
    if level.metric == "kwh_per_mtoken":
        return sequence_s * _known(watts(cluster), "tdp_w of the GPU")
    return sequence_s


def _known(amount: float | None, missing: str) -> float:
    if amount is None:
        raise SpecError(f"objective: {missing} is not known")
    return amount
