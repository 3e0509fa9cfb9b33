"""Re-scores a plan of serving in floats: the specification of what such a plan is.

It knows nothing of the solver, of integers or of bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Ints, Parts, added, scaled, total
from meshwright.plans.rule import BrokenRule, broken
from meshwright.results.priced_plan import StageMemory
from meshwright.results.serving import PricedServing, ServingPlan
from meshwright.rules.limits import memory_rule
from meshwright.serving.deployment import Deployments, on_meshes
from meshwright.serving.job import ServingJob
from meshwright.serving.memory import memory
from meshwright.serving.price import Prices, price
from meshwright.serving.rounds import bubble, round_s, wait_s
from meshwright.serving.rules import serving_rules
from meshwright.spec.plan_fields import AXES
from meshwright.spec.units import GIB


@dataclass(frozen=True)
class _Scored:
    """A plan as a row of its own."""

    job: ServingJob
    rows: Deployments
    mesh: Ints
    layers: Ints
    groups: int
    prices: Prices

    @property
    def ttft_parts(self) -> Parts:
        return _whole(self.prices.first_token.on_stages(self.layers))

    @property
    def tpot_s(self) -> float:
        stages = total(self.prices.step.on_stages(self.layers))
        return round_s(stages, self.groups)

    @property
    def serving_s(self) -> float:
        """Return the seconds in which a replica serves all of its requests once."""
        steps = self.prices.step.times(self.job.inference.output_len - 1)
        stages = self.prices.fill.plus(steps).on_stages(self.layers)
        return round_s(total(stages), self.groups)

    @property
    def cycle(self) -> Parts:
        """Return the seconds of each stage in a round that the objective counts."""
        return self.prices.cycle(self.job).on_stages(self.layers)


def check(job: ServingJob, plan: ServingPlan) -> PricedServing:
    """Return the plan with its times and memory."""
    own, inference = _score(job, plan), job.inference
    ttft_s, tpot_s = float(sum(_whole_s(own.ttft_parts))), own.tpot_s
    serving_s, parts = own.serving_s, _objective_parts(own)
    request_s = ttft_s + (inference.output_len - 1) * tpot_s
    return PricedServing(
        plan=plan,
        objective_s=sum(parts.values()),
        objective_parts=parts,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        request_s=request_s,
        tokens_per_s=inference.batch * inference.output_len / serving_s,
        requests_per_s=inference.batch / serving_s,
        bubble=_bubble(own),
        ttft_parts=_floats(own.ttft_parts),
        tpot_parts=_tpot_parts(own),
        stages=_stage_memory(job, own),
    )


def broken_rules(job: ServingJob, plan: ServingPlan) -> list[BrokenRule]:
    """Return every rule that a plan breaks, with its numbers; none if it is valid."""
    own = _score(job, plan)
    legal = broken(serving_rules(job.spec, own.mesh[None]), job.spec, own.rows)
    return [*legal, *_split_rules(job, plan), *_limit_rules(job, own)]


def _score(job: ServingJob, plan: ServingPlan) -> _Scored:
    mesh = np.array([plan.mesh[axis] for axis in AXES], dtype=np.int64)
    groups = np.array([plan.microbatches], dtype=np.int64)
    rows = on_meshes(job, mesh[None], groups)
    layers = np.array(plan.layers, dtype=np.int64)
    return _Scored(job, rows, mesh, layers, plan.microbatches, price(job, rows))


def _whole(stages: Parts) -> Parts:
    """Return parts of all stages together."""
    return {name: part.sum(keepdims=True) for name, part in stages.items()}


def _whole_s(parts: Parts) -> list[float]:
    return [float(part[0]) for part in parts.values()]


def _floats(parts: Parts) -> dict[str, float]:
    return dict(zip(parts, _whole_s(parts), strict=True))


def _objective_parts(own: _Scored) -> dict[str, float]:
    """Return what is minimised, by part: GPUs at work on average, and waiting.

    A latency is a way through all stages, and what a round takes longer than that; a
    throughput is that of all stages at once.
    """
    before = own.prices.before(own.job).on_stages(own.layers)
    cycle, is_latency = own.cycle, own.job.inference.objective == "latency"
    share = 1.0 if is_latency else own.groups / len(own.layers)
    busy = scaled(_whole(cycle), share)
    waiting = round_s(total(cycle), own.groups) - sum(_whole_s(busy))
    parts = added([_whole(before), busy])
    return {**_floats(parts), "waiting": waiting}


def _bubble(own: _Scored) -> float:
    stages = total(own.cycle)
    return bubble(stages, own.groups) if stages.max() > 0 else 0.0


def _tpot_parts(own: _Scored) -> dict[str, float]:
    """Return what is between tokens: one way through all stages, and waiting."""
    parts = _floats(_whole(own.prices.step.on_stages(own.layers)))
    return {**parts, "waiting": own.tpot_s - sum(parts.values())}


def _stage_memory(job: ServingJob, own: _Scored) -> tuple[StageMemory, ...]:
    return tuple(
        StageMemory(
            total_gib=sum(parts.values()), parts=parts, usable_gib=job.spec.usable_gib
        )
        for parts in _stage_parts(job, own)
    )


def _stage_parts(job: ServingJob, own: _Scored) -> list[dict[str, float]]:
    """Return the memory of each stage, GiB by part."""
    held, last = memory(job, own.rows), len(own.layers) - 1
    result = []
    for stage, layers in enumerate(own.layers.tolist()):
        ends = [held.first] * (stage == 0) + [held.last] * (stage == last)
        parts = added([scaled(held.layer, layers), held.fixed, *ends])
        result.append({name: float(part[0]) / GIB for name, part in parts.items()})
    return result


def _split_rules(job: ServingJob, plan: ServingPlan) -> list[BrokenRule]:
    lead = max(1, job.model.first_dense_layers)
    gpus = plan.tp * plan.pp * plan.dp_replicate
    checks = [
        ("stages", "there is a stage per pipeline rank", len(plan.layers), plan.pp),
        (
            "layers_placed",
            "the stages hold all layers",
            sum(plan.layers),
            job.model.n_layers,
        ),
        ("world_size", "the degrees use every GPU", gpus, job.spec.cluster.gpus),
        ("leading", "the first stage has what leads", min(plan.layers[0], lead), lead),
    ]
    return [
        BrokenRule(rule=rule, sentence=sentence, have=have, need=need)
        for rule, sentence, have, need in checks
        if have != need
    ]


def _limit_rules(job: ServingJob, own: _Scored) -> list[BrokenRule]:
    pins, slo = job.spec.pins, job.inference.slo
    result = []
    if pins.layers is not None and list(pins.layers) != own.layers.tolist():
        sentence = f"pins.layers: {list(pins.layers)}"
        result.append(BrokenRule(rule="pin layers", sentence=sentence))
    held = [sum(parts.values()) for parts in _stage_parts(job, own)]
    fullest = int(np.argmax(held))
    if held[fullest] > job.spec.usable_gib:
        result.append(memory_rule(held[fullest], job.spec.usable_gib, fullest))
    waits = {
        "ttft": ("the first token", sum(_whole_s(own.ttft_parts)), slo.ttft_ms),
        "tpot": ("every other token", own.tpot_s, slo.tpot_ms),
    }
    for name, (token, seconds, limit_ms) in waits.items():
        if limit_ms is not None and seconds > wait_s(limit_ms):
            result.append(_slo_rule(name, token, limit_ms, seconds * 1e3))
    return result


def _slo_rule(name: str, token: str, limit_ms: float, takes_ms: float) -> BrokenRule:
    sentence = f"{token} comes within inference.slo.{name}_ms"
    return BrokenRule(
        rule=name, sentence=sentence, have=limit_ms, need=takes_ms, unit="ms"
    )
