"""How far an answer may be off, and what is proven of it, as lines."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.report.alternatives import choice_lines
from meshwright.report.tables import (
    Lines,
    Section,
    seconds_text,
)
from meshwright.results.claims import probability_text, safety_claims
from meshwright.results.outcome import Certificate, Outcome
from meshwright.results.priced_plan import PricedPlan


def proof_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield how far the answer may be off, and its certificate."""
    best, fastest = outcome.best, outcome.optimum
    if best is None or fastest is None:
        return
    if outcome.band:
        yield Lines("How sure", tuple(band_lines(outcome)))
    if outcome.certificate:
        yield Lines("Certificate", tuple(_certificate(outcome, best, fastest)))


def band_lines(outcome: Outcome) -> Iterator[str]:
    """Yield how far the step time may be off, and a plan within that error."""
    best, band = outcome.best, outcome.band
    if best is None or band is None:
        return
    low, high = best.step_s * math.exp(-band.p90), best.step_s * math.exp(band.p90)
    told = "of {} runs of {} that were measured, nine in ten lay within {:.0%}"
    if not band.is_measured:
        told = "calibrated on {} runs of {}, nine in ten are expected within {:.0%}"
    yield (
        f"Between {seconds_text(low)} and {seconds_text(high)}: "
        f"{told.format(band.runs, band.runs_of, math.expm1(band.p90))}."
    )
    next_best = outcome.runner_up
    if outcome.fastest:
        # The plan is compared with the fastest one already.
        return
    if next_best and next_best.step_s <= best.step_s * math.exp(band.median):
        loss = next_best.step_s / best.step_s - 1
        simpler = "simpler, " if next_best.is_simpler else ""
        yield f"Within that error ({simpler}{loss:+.1%}): {next_best.plan.brief}"


def _certificate(
    outcome: Outcome, best: PricedPlan, fastest: PricedPlan
) -> Iterator[str]:
    certificate = outcome.certificate
    if certificate is None:
        return
    yield from choice_lines(outcome.open)
    yield from claim_lines(outcome.status, certificate, fastest.step_s)
    if best.plan.pp > 1:
        gap = best.schedule_s / best.step_s - 1
        difference = f"{abs(gap):.2%} {'more' if gap > 0 else 'less'}"
        yield (
            f"What was minimised: {certificate.objective}. By the task graph of its "
            f"schedule the recommended plan takes {seconds_text(best.schedule_s)}, "
            f"{difference if abs(gap) > 5e-5 else 'the same'}."
        )
    if outcome.rival:
        yield (
            f"By the task graph {outcome.rival.plan} is faster than the fastest plan: "
            f"{seconds_text(outcome.rival.schedule_s)}, not "
            f"{seconds_text(fastest.schedule_s)}."
        )


def claim_lines(status: str, certificate: Certificate, step_s: float) -> Iterator[str]:
    """Yield what was proven, and how all plans but the fastest were ruled out.

    `step_s` is the step time of the fastest plan that was found.
    """
    if certificate.levels:
        yield f"Best by {', then '.join(certificate.levels)} of all uses of the parts."
    least = f"no plan takes less than {certificate.bound_s:.6f} s"
    if status == "optimal":
        yield f"Proven optimal in the model: {least} (gap 0)."
    else:
        gap = max(0.0, 1 - certificate.bound_s / step_s)
        found = f"the fastest plan found so far {step_s:.6f} s (gap {gap:.2%})"
        yield f"Not proven: {least}, {found}."
        yield certificate.left_open
    counts = certificate.counts
    yield (
        f"{counts.skeletons:,} legal plans, splits of layers aside: {counts.bounded:,} "
        f"cannot be faster, {counts.no_memory:,} others cannot fit, "
        f"{counts.survivors:,} left to CP-SAT."
    )


def safety_lines(plan: PricedPlan, outcome: Outcome | None = None) -> Lines:
    """Return the probability that a plan fits, then the fastest at other risks."""
    claims = () if outcome is None else safety_claims(outcome)
    return Lines("How safe", (fit_text(plan.fit_probability), *claims))


def fit_text(probability: float) -> str:
    """Return how likely a plan fits, as a sentence."""
    return f"Fits with probability {probability_text(probability)}."
