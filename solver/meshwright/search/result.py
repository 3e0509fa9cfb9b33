"""A row from an outcome: metrics, and why there is none."""

from __future__ import annotations

from typing import Any

from meshwright.plan import NearMiss, Outcome, PricedPlan, StageMemory
from meshwright.search.row import Row, Value
from meshwright.search.ways import ways
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.spec import Spec

HOUR_S = 3_600
DAY_S = 86_400
MILLION = 1e6


def row_of(
    key: str, name: str, axes: dict[str, Value], spec: Spec, outcome: Outcome
) -> Row:
    """Return the row of a solved spec."""
    own: dict[str, Any] = {"gpus": outcome.gpus}
    if outcome.best is not None:
        cluster = outcome.cluster or spec.cluster
        own |= _metrics(spec, cluster, outcome.best, outcome.gpus)
        own["certificate"] = outcome.certificate
    elif outcome.near_miss is not None:
        own |= _reason(outcome.near_miss)
    return Row(key=key, name=name, axes=axes, status=outcome.status, **own)


def _metrics(
    spec: Spec, cluster: Cluster, best: PricedPlan, gpus: int
) -> dict[str, Any]:
    training, run = spec.training, spec.run
    tokens_per_s = training.seq_len * training.global_batch / best.step_s
    fullest = min(best.stages, key=_headroom_gib)
    usd_per_s = _usd_per_hour(spec, cluster, gpus) / HOUR_S
    kw = _watts(cluster, gpus) / 1e3
    return {
        "step_s": best.step_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": best.tokens_per_s_per_gpu,
        "mfu": best.mfu,
        "peak_gib": best.peak_gib,
        "headroom_gib": _headroom_gib(fullest),
        "usd_per_mtoken": usd_per_s / tokens_per_s * MILLION or None,
        "kwh_per_mtoken": kw / HOUR_S / tokens_per_s * MILLION or None,
        "train_days": run.tokens / tokens_per_s / DAY_S if run.tokens else None,
        "ways": len(ways(best.plan)),
        "plan": best.plan,
        "time_parts": best.time_parts,
        "memory": fullest,
    }


def _headroom_gib(stage: StageMemory) -> float:
    return stage.usable_gib - stage.total_gib


def _kinds(cluster: Cluster, gpus: int) -> list[tuple[Gpu, int]]:
    """Return the kinds of GPUs of a cluster, and how many there are of each."""
    parts = [(part.topology.gpu, part.gpus) for part in cluster.parts]
    return parts or [(cluster.topology.gpu, gpus)]


def _usd_per_hour(spec: Spec, cluster: Cluster, gpus: int) -> float:
    """Return what all GPUs cost for an hour; 0 if a price is not known."""
    prices = [
        (spec.run.gpu_hour_price or gpu.hour_usd or 0.0) * count
        for gpu, count in _kinds(cluster, gpus)
    ]
    return sum(prices) if all(prices) else 0.0


def _watts(cluster: Cluster, gpus: int) -> float:
    """Return the power limit of all GPUs; 0 if one is not known."""
    watts = [(gpu.tdp_w or 0.0) * count for gpu, count in _kinds(cluster, gpus)]
    return sum(watts) if all(watts) else 0.0


def _reason(miss: NearMiss) -> dict[str, Any]:
    """Return the rules that leave no plan, as the nearest miss breaks them."""
    rules = miss.broken_rules
    return {
        "conflict": tuple(dict.fromkeys(own.rule for own in rules)),
        "sentence": rules[0].sentence if rules else "",
    }
