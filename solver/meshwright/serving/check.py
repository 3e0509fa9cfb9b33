"""Re-scores a serving plan in floats: the specification of times, memory and rules.

It knows nothing of the solver, of integers or of bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Ints, Parts, added, scaled, total
from meshwright.plans.rule import BrokenRule, broken
from meshwright.results.priced_plan import StageMemory
from meshwright.results.serving import PricedServing, ServingPlan
from meshwright.rules.legality import memory_rule
from meshwright.rules.sums import unequal
from meshwright.serving.deployment import (
    Deployments,
    ServingJob,
    on_meshes,
    serving_rules,
)
from meshwright.serving.price import Prices, bubble, memory, price, round_s, wait_s
from meshwright.spec.plan_fields import AXES
from meshwright.spec.units import GIB


def check(job: ServingJob, plan: ServingPlan) -> PricedServing:
    """Return the plan with its times and memory."""
    return _priced(_score(job, plan))


def broken_rules(job: ServingJob, plan: ServingPlan) -> list[BrokenRule]:
    """Return every rule that a plan breaks, with its numbers; none if it is valid."""
    return _broken(_score(job, plan))


def checked(
    job: ServingJob, plan: ServingPlan
) -> tuple[PricedServing, list[BrokenRule]]:
    """Return the results of `check` and `broken_rules`, scoring the plan once."""
    scored = _score(job, plan)
    return _priced(scored), _broken(scored)


@dataclass(frozen=True)
class _Scored:
    """A plan as columns of length one, its split and its prices."""

    job: ServingJob
    plan: ServingPlan
    rows: Deployments
    mesh: Ints
    layers: Ints
    prices: Prices

    @property
    def groups(self) -> int:
        return self.plan.microbatches

    @property
    def ttft_parts(self) -> dict[str, float]:
        """Return the seconds of the first token over all stages, by part."""
        return _floats(_summed(self.prices.first_token.on_stages(self.layers)))

    @property
    def ttft_s(self) -> float:
        return math.fsum(self.ttft_parts.values())

    @property
    def tpot_s(self) -> float:
        stages_s = total(self.prices.step.on_stages(self.layers))
        return round_s(stages_s, self.groups)

    @property
    def tpot_parts(self) -> dict[str, float]:
        """Return the seconds between tokens: once through all stages, and waiting."""
        parts = _floats(_summed(self.prices.step.on_stages(self.layers)))
        return {**parts, "waiting": self.tpot_s - math.fsum(parts.values())}

    @property
    def serving_s(self) -> float:
        """Return the seconds in which a replica serves all of its requests once."""
        steps = self.prices.step.times(self.job.inference.output_len - 1)
        stages = self.prices.fill.plus(steps).on_stages(self.layers)
        return round_s(total(stages), self.groups)

    @property
    def cycle(self) -> Parts:
        """Return the seconds of every stage in the rounds that the objective counts."""
        return self.prices.cycle(self.job).on_stages(self.layers)

    @property
    def bubble(self) -> float:
        stages_s = total(self.cycle)
        return bubble(stages_s, self.groups) if stages_s.max() > 0 else 0.0

    @property
    def objective_parts(self) -> dict[str, float]:
        """Return the seconds that are minimised, by part: GPUs at work, and waiting.

        A latency passes all stages once, and waits for what a round takes longer; a
        throughput has all stages at work at once.
        """
        once = self.prices.once(self.job).on_stages(self.layers)
        is_latency = self.job.inference.objective == "latency"
        share = 1.0 if is_latency else self.groups / len(self.layers)
        busy = scaled(_summed(self.cycle), share)
        waiting = round_s(total(self.cycle), self.groups) - math.fsum(
            _floats(busy).values()
        )
        return {**_floats(added([_summed(once), busy])), "waiting": waiting}

    @property
    def stage_gib(self) -> list[dict[str, float]]:
        """Return the memory of every stage, GiB by part."""
        held, last = memory(self.job, self.rows), len(self.layers) - 1
        result = []
        for stage, layers in enumerate(self.layers.tolist()):
            ends = [held.first] * (stage == 0) + [held.last] * (stage == last)
            parts = added([scaled(held.layer, layers), held.fixed, *ends])
            result.append({name: float(part[0]) / GIB for name, part in parts.items()})
        return result


def _score(job: ServingJob, plan: ServingPlan) -> _Scored:
    mesh = np.array([plan.mesh[axis] for axis in AXES], dtype=np.int64)
    groups = np.array([plan.microbatches], dtype=np.int64)
    rows = on_meshes(job, mesh[None], groups, np.array([plan.attention_dp]))
    layers = np.array(plan.layers, dtype=np.int64)
    return _Scored(job, plan, rows, mesh, layers, price(job, rows))


def _priced(scored: _Scored) -> PricedServing:
    inference, parts = scored.job.inference, scored.objective_parts
    ttft_s, tpot_s, serving_s = scored.ttft_s, scored.tpot_s, scored.serving_s
    return PricedServing(
        plan=scored.plan,
        objective_s=math.fsum(parts.values()),
        objective_parts=parts,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        request_s=ttft_s + (inference.output_len - 1) * tpot_s,
        busy_request_s=serving_s,
        tokens_per_s=inference.batch * inference.output_len / serving_s,
        requests_per_s=inference.batch / serving_s,
        bubble=scored.bubble,
        ttft_parts=scored.ttft_parts,
        tpot_parts=scored.tpot_parts,
        stages=tuple(_stage_memory(scored.job, gib) for gib in scored.stage_gib),
    )


def _stage_memory(job: ServingJob, gib: dict[str, float]) -> StageMemory:
    """Return the memory of a stage, given its parts."""
    needed_gib = math.fsum(gib.values())
    return StageMemory(
        total_gib=needed_gib,
        parts=gib,
        usable_gib=job.spec.usable_gib,
        fit_probability=job.spec.fit_probability(needed_gib),
    )


def _broken(scored: _Scored) -> list[BrokenRule]:
    spec = scored.job.spec
    legal = broken(serving_rules(spec, scored.mesh[None]), spec, scored.rows)
    return [*legal, *_split_rules(scored.job, scored.plan), *_limit_rules(scored)]


def _split_rules(job: ServingJob, plan: ServingPlan) -> list[BrokenRule]:
    """Return the rules about stages, layers and GPUs that a plan breaks."""
    lead = max(1, job.model.first_dense_layers)
    leading, layers = min(plan.layers[0], lead), sum(plan.layers)
    gpus, world = plan.tp * plan.pp * plan.dp_replicate, job.spec.cluster.gpus
    return unequal(
        [
            ("stages", "there is a stage per pipeline rank", len(plan.layers), plan.pp),
            ("layers_placed", "the stages hold all layers", layers, job.model.n_layers),
            ("world_size", "the degrees use every GPU", gpus, world),
            ("leading", "the first stage has what leads", leading, lead),
        ]
    )


def _limit_rules(scored: _Scored) -> list[BrokenRule]:
    """Return the pinned layers, the memory and the latencies that a plan breaks."""
    spec = scored.job.spec
    pins, slo = spec.pins, spec.inference.slo
    result = []
    if pins.layers is not None and list(pins.layers) != scored.layers.tolist():
        sentence = f"pins.layers: {list(pins.layers)}"
        result.append(BrokenRule(rule="pin layers", sentence=sentence))
    stages_gib = [math.fsum(gib.values()) for gib in scored.stage_gib]
    fullest = int(np.argmax(stages_gib))
    if stages_gib[fullest] > spec.usable_gib:
        result.append(memory_rule(stages_gib[fullest], spec.usable_gib, fullest))
    waits = {
        "ttft": ("the first token", scored.ttft_s, slo.ttft_ms),
        "tpot": ("every other token", scored.tpot_s, slo.tpot_ms),
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


def _summed(stages: Parts) -> Parts:
    """Return parts summed over all stages."""
    return {name: part.sum(keepdims=True) for name, part in stages.items()}


def _floats(parts: Parts) -> dict[str, float]:
    return {name: float(part[0]) for name, part in parts.items()}
