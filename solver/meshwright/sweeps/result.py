"""A row from an outcome: metrics, and why there is none."""

from __future__ import annotations

from typing import Any

from meshwright.economics import prices
from meshwright.results.outcome import NearMiss, Outcome
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.spec.cluster import Cluster
from meshwright.spec.spec import Spec
from meshwright.sweeps.row import Row, Value
from meshwright.sweeps.techniques_beyond_dp import ways


def row_of(
    key: str, name: str, axes: dict[str, Value], spec: Spec, outcome: Outcome
) -> Row:
    """Return the row of a solved spec."""
    own: dict[str, Any] = {"gpus": outcome.gpus}
    if outcome.best is not None:
        cluster = outcome.cluster or spec.cluster
        own |= _metrics(spec, cluster, outcome.best)
        own["train_days"] = outcome.run.days if outcome.run else None
        own["certificate"] = outcome.certificate
    elif outcome.near_miss is not None:
        own |= _reason(outcome.near_miss)
    return Row(key=key, name=name, axes=axes, status=outcome.status, **own)


def _metrics(spec: Spec, cluster: Cluster, best: PricedPlan) -> dict[str, Any]:
    training = spec.training
    tokens_per_s = training.seq_len * training.global_batch / best.step_s
    fullest = min(best.stages, key=_headroom_gib)
    watts = prices.watts(cluster)
    kw = watts / 1e3 if watts is not None else None
    usd = prices.usd_per_hour(cluster, spec.run.gpu_hour_price)
    return {
        "step_s": best.step_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": best.tokens_per_s_per_gpu,
        "mfu": best.mfu,
        "peak_gib": best.peak_gib,
        "headroom_gib": _headroom_gib(fullest),
        "usd_per_mtoken": _per_mtoken(usd, tokens_per_s),
        "kwh_per_mtoken": _per_mtoken(kw, tokens_per_s),
        "ways": len(ways(best.plan)),
        "plan": best.plan,
        "time_parts": best.time_parts,
        "memory": fullest,
    }


def _headroom_gib(stage: StageMemory) -> float:
    return stage.usable_gib - stage.total_gib


def _per_mtoken(per_hour: float | None, tokens_per_s: float) -> float | None:
    """Return an amount per hour as one per million tokens, where it is known."""
    return None if per_hour is None else prices.per_mtoken(per_hour, tokens_per_s)


def _reason(miss: NearMiss) -> dict[str, Any]:
    """Return the rules that leave no plan, as the nearest miss breaks them."""
    rules = miss.broken_rules
    return {
        "conflict": tuple(dict.fromkeys(own.rule for own in rules)),
        "sentence": rules[0].sentence if rules else "",
    }
