"""The numbers of an answer that an agent can check, in a few hundred tokens."""

from __future__ import annotations

import math

from meshwright.agents.tools import Json
from meshwright.report.screen import Answer
from meshwright.results.claims import proof_claim
from meshwright.results.comparison import Comparison
from meshwright.results.diagnosis import Diagnosis
from meshwright.results.explanation import Explanation
from meshwright.results.outcome import NearMiss, Outcome
from meshwright.results.outcome_parts import Conflict
from meshwright.results.priced_plan import PricedPlan, StageMemory
from meshwright.results.serving import PricedServing, ServingOutcome
from meshwright.results.training_run import RentalAnswer

MOST_REPAIRS, MOST_RULES, MOST_FAULTS, MOST_RENTALS = 4, 6, 4, 4
"""Repairs, rules, faults and changes in the numbers; the whole answer has all."""


def numbers(answer: Answer) -> Json:
    """Return the numbers of an answer that can be checked."""
    if isinstance(answer, Outcome):
        return _of_outcome(answer)
    if isinstance(answer, Explanation):
        return _of_explanation(answer)
    if isinstance(answer, ServingOutcome):
        return _of_serving(answer)
    best = answer.best or answer.outcome
    return {
        "question": answer.title,
        "fits": answer.fits,
        "deployment": _of_serving(answer.outcome),
        "best": _deployment(best.best) if answer.best else None,
        "conflict": _conflict(answer.conflict),
        "repairs": [repair.edit for repair in answer.repairs[:MOST_REPAIRS]],
    }


def _of_outcome(outcome: Outcome) -> Json:
    best, proof = outcome.best, outcome.certificate
    data: Json = {
        "question": outcome.title,
        "status": outcome.status,
        "is_stopped": outcome.is_stopped or None,
        "gpus": outcome.gpus,
        "params": outcome.model.params if outcome.model else None,
    }
    if best is None:
        repair = outcome.repair
        return data | {
            "left_open": outcome.left_open,
            **_miss(outcome.near_miss),
            "conflict": _conflict(outcome.conflict),
            "repairs": [repair.sentence] if repair else None,
        }
    data |= {"recommended": _plan(best), "claim": proof_claim(outcome)}
    data["capacity_gib"] = round(outcome.capacity_gib, 2)
    if band := outcome.band:
        spread = math.exp(band.p90)
        data["band_s"] = _rounded(best.step_s / spread), _rounded(best.step_s * spread)
    if outcome.fastest:
        data["fastest"] = _plan(outcome.fastest)
    if proof:
        data |= {"bound_s": _rounded(proof.bound_s), "gap": _rounded(proof.gap)}
    if outcome.open and outcome.open.chosen:
        chosen = outcome.open.chosen.model_dump(mode="json", exclude_none=True)
        data["chosen"] = {n: v for n, v in chosen.items() if not isinstance(v, dict)}
    if run := outcome.run:
        told = {"days": run.days, "gpu_hours": run.gpu_hours, "usd": run.cost_usd}
        data["run"] = {n: _rounded(v) for n, v in told.items() if v is not None}
    return data


def _of_explanation(told: Explanation) -> Json:
    data: Json = {
        "question": told.title,
        "status": told.status,
        "fits": told.fits,
        "plan": _plan(told.plan) if told.plan else None,
        "conflict": _conflict(told.conflict),
        "breaks": [str(rule) for rule in told.broken_rules[:MOST_RULES]] or None,
        "repairs": [repair.sentence for repair in told.repairs[:MOST_REPAIRS]] or None,
        "left_open": told.left_open or None,
    }
    if memory := told.memory:
        data["fullest_gpu_gib"] = _held_of(memory)
    if nearest := told.nearest_plan:
        data["nearest_plan"] = nearest.text
    if told.best and (optimum := told.best.optimum):
        data["fastest"] = {
            "plan": str(optimum.plan),
            "step_s": _rounded(optimum.step_s),
        }
    return data


def of_diagnosis(told: Diagnosis) -> Json:
    """Return what is at fault with a run, and what to change."""
    cause = told.out_of_memory
    return {
        "question": told.spec,
        "plan": str(told.plan),
        "step_s": told.log.step_s,
        "modelled_s": _rounded(told.modelled_s),
        "faults": [
            {"name": fault.name, "probability": _rounded(fault.probability)}
            for fault in told.faults[:MOST_FAULTS]
        ]
        or None,
        "changes": [
            {
                "change": change.change,
                "option": change.option,
                "step_s": _rounded(change.step_s),
            }
            for change in told.changes[:MOST_FAULTS]
        ]
        or None,
        "out_of_memory": cause
        and {
            "tried_gib": cause.tried_gib,
            "part": cause.part,
            "suspects": [suspect.name for suspect in cause.suspects[:MOST_FAULTS]],
            "is_fragmented": cause.is_fragmented,
            "needed_gib": _rounded(cause.needed_gib),
            "repairs": [repair.sentence for repair in cause.repairs[:MOST_REPAIRS]],
        },
    }


def of_rentals(found: RentalAnswer) -> Json:
    """Return the front of price against time, the cheapest first."""
    front = [
        {
            "instance": rental.instance,
            "cloud": rental.cloud,
            "count": rental.count,
            "gpus": rental.gpus,
            "usd": _rounded(rental.usd or 0.0),
            "days": _rounded(rental.days or 0.0),
            "plan": str(rental.plan),
        }
        for rental in found.front[:MOST_RENTALS]
    ]
    return {
        "question": found.title,
        "status": found.status,
        "params": found.model.params,
        "binds": found.binds,
        "front": front,
        "choices": len(found.rentals),
    }


def of_comparison(found: Comparison) -> Json:
    """Return the numbers of plans side by side."""
    return {
        "plans": [
            {
                "name": compared.name,
                **(_plan(compared.plan) if compared.plan else {"fits": False}),
            }
            for compared in found.plans
        ],
        "breaks": {
            compared.name: [str(rule) for rule in compared.broken_rules[:MOST_RULES]]
            for compared in found.plans
            if compared.broken_rules
        }
        or None,
        "crossovers": [
            {"at": _rounded(flip.at), "before": flip.before, "after": flip.after}
            for flip in found.flips
        ]
        or None,
        "varied": f"{found.vary}, {found.range.unit}" if found.range else None,
    }


def _of_serving(outcome: ServingOutcome) -> Json:
    data: Json = {
        "question": outcome.title,
        "status": outcome.status,
        "gpus": outcome.gpus,
    }
    if outcome.best is None:
        return data | _miss(outcome.near_miss)
    largest = outcome.largest
    room = {"batch": largest.batch, "context": largest.context} if largest else None
    return data | {"recommended": _deployment(outcome.best), "room_for": room}


def _deployment(best: PricedServing | None) -> Json | None:
    if best is None:
        return None
    return {
        "plan": str(best.plan),
        "ttft_s": _rounded(best.ttft_s),
        "tpot_s": _rounded(best.tpot_s),
        "tokens_per_s": _rounded(best.tokens_per_s),
        "fullest_gpu_gib": _held_of(
            max(best.stages, key=lambda stage: stage.total_gib)
        ),
    }


def _held_of(memory: StageMemory) -> list[float]:
    """Return the memory that a GPU holds, of that which is usable."""
    return [round(memory.total_gib, 2), round(memory.usable_gib, 2)]


def _plan(priced: PricedPlan) -> Json:
    fullest = max(priced.stages, key=lambda stage: stage.total_gib)
    known = priced.familiarity
    return {
        "plan": str(priced.plan),
        "step_s": _rounded(priced.step_s),
        "mfu": _rounded(priced.mfu),
        "tokens_per_s_per_gpu": _rounded(priced.tokens_per_s_per_gpu),
        "peak_gib": round(priced.peak_gib, 2),
        "memory_gib": {name: round(gib, 2) for name, gib in fullest.parts.items()},
        "fit_probability": _rounded(priced.fit_probability),
        "beyond_known_runs": [*known.beyond] if known else None,
    }


def _conflict(conflict: Conflict | None) -> Json | None:
    if conflict is None:
        return None
    return {
        "rules": [str(rule) for rule in conflict.rules[:MOST_RULES]],
        "is_minimal": conflict.is_minimal,
    }


def _miss(miss: NearMiss | None) -> Json:
    if miss is None:
        return {}
    breaks = [f"{rule.rule}: {rule.sentence}" for rule in miss.broken_rules]
    return {"closest": miss.description, "breaks": breaks[:MOST_RULES]}


def _rounded(value: float) -> float:
    """Return a number with five digits."""
    return float(f"{value:.5g}")
