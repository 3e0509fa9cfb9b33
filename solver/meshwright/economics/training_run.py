"""The run that a spec asks for, on its best plan."""

from __future__ import annotations

import math
from typing import Any

from meshwright.cost.job import Job
from meshwright.economics.budget import DAY_S, chinchilla, six_nd, tokens_of
from meshwright.economics.options import compressions, straggler
from meshwright.economics.outages import Days, failures, over_days
from meshwright.economics.prices import per_mtoken, watts
from meshwright.economics.setup import Setup
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.training_run import Chinchilla, Deadline, RunReport
from meshwright.spec.units import GIB


def run_report(job: Job, priced: PricedPlan) -> RunReport:
    """Return what the run of a job's spec takes on a plan."""
    own = Setup(job.at(priced.plan.precision), priced)
    outages = failures(own)
    known = outages.goodput if outages else None
    useful = 1.0 if known is None else known
    tokens = _tokens(own, useful)
    days = _days(own, tokens, useful)
    hours = days.real * 24 if days else None
    return RunReport.model_validate(
        {
            **_size(own),
            **_work(own, tokens),
            **_money(own, hours, useful),
            "ideal_days": days.ideal if days else None,
            "days": days.real if days else None,
            "deadline": _deadline(own, days, useful),
            "chinchilla": _best_model(own, tokens),
            "failures": over_days(outages, days) if outages else None,
            "compression": tuple(compressions(own, hours)),
            "straggler": straggler(own, hours),
        }
    )


def _tokens(own: Setup, useful: float) -> float | None:
    """Return the tokens of the run: as asked, paid for, or until the deadline."""
    run = own.run
    if run.tokens is not None:
        return run.tokens
    if run.budget_flops is not None:
        return tokens_of(own.active_params, run.budget_flops)
    return run.deadline * DAY_S * own.tokens_per_s * useful if run.deadline else None


def _days(own: Setup, tokens: float | None, useful: float) -> Days | None:
    """Return the days of the run; None where tokens are not known or nothing lasts."""
    if not tokens or not useful:
        return None
    ideal = tokens / own.tokens_per_s / DAY_S
    return Days(ideal, ideal / useful)


def _size(own: Setup) -> dict[str, Any]:
    """Return how large the model and its state are."""
    state = own.params * own.state.total
    usable = own.job.spec.usable_gib * GIB
    return {
        "params": own.params,
        "active_params": own.active_params,
        "state_gb": state / 1e9,
        "least_gpus": math.ceil(state / usable),
    }


def _work(own: Setup, tokens: float | None) -> dict[str, Any]:
    """Return what there is to do, and how much of what GPUs can do it takes.

    MFU counts what the model needs, HFU what is recomputed too (Chowdhery et al. 2022,
    PaLM, section 4.1).
    """
    steps = tokens / own.tokens_per_step if tokens else None
    again = own.recomputed_flops / own.step_flops
    return {
        "tokens": tokens,
        "steps": steps,
        "flops_6nd": six_nd(own.active_params, tokens) if tokens else None,
        "flops_exact": own.step_flops * steps if steps else None,
        "mfu": own.priced.mfu,
        "hfu": own.priced.mfu * (1 + again),
        "tokens_per_s": own.tokens_per_s,
    }


def _money(own: Setup, hours: float | None, useful: float) -> dict[str, Any]:
    """Return GPU hours, USD and energy of a run of so many hours."""
    price, power = own.usd_per_hour, watts(own.job.spec.cluster)
    useful_per_s = own.tokens_per_s * useful
    return {
        "gpu_hours": hours * own.plan.world_size if hours else None,
        "cost_usd": price * hours if price is not None and hours else None,
        "usd_per_mtoken": per_mtoken(price, useful_per_s) if price and useful else None,
        "energy_mwh": power * hours / 1e6 if power is not None and hours else None,
    }


def _deadline(own: Setup, days: Days | None, useful: float) -> Deadline | None:
    asked = own.run.deadline
    if asked is None:
        return None
    return Deadline(
        days=asked,
        tokens=asked * DAY_S * own.tokens_per_s * useful,
        is_met=days.real <= asked * (1 + 1e-9) if days else None,
        rate_needed=days.real / asked if days else None,
    )


def _best_model(own: Setup, tokens: float | None) -> Chinchilla | None:
    """Return the compute-optimal point of the budget, or of the run as it is."""
    flops = own.run.budget_flops
    if flops is None and tokens:
        flops = six_nd(own.active_params, tokens)
    return chinchilla(own.active_params, flops) if flops else None
