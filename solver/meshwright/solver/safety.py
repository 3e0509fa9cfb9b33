"""The best plans at other risks of running out of memory than the one asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.deadline import Deadline
from meshwright.results.outcome import Outcome, SafetyChoice
from meshwright.results.priced_plan import PricedPlan
from meshwright.search.options import Options
from meshwright.solver.prepared import Prepared
from meshwright.solver.relaxation import best_outcome
from meshwright.spec.spec import Spec, with_risk

RISKS = (0.01, 0.05, 0.2)
"""Risks that are compared: the safest and the boldest that were not asked for."""

EFFORT = 0.5
"""Deterministic seconds of CP-SAT for the best plan at another risk."""


def roomiest_gib(spec: Spec) -> float:
    """Return the most memory that a plan may use at any risk that is compared, GiB."""
    if not spec.limits.is_by_risk:
        return spec.usable_gib
    return max(spec.usable_gib, with_risk(spec, RISKS[-1]).usable_gib)


def safety_choices(
    prepared: Prepared, options: Options, deadline: Deadline, best: PricedPlan
) -> Iterator[SafetyChoice]:
    """Yield the best plan at two other risks; `best` is that at the risk asked for.

    A limit on memory that is given as such leaves no risk to choose. No bound of the
    lattice depends on memory, so that it is prepared already; and more risk allows the
    best plan too, so that only faster ones are looked for.
    """
    limits = prepared.job.spec.limits
    if not limits.is_by_risk:
        return
    risks = [risk for risk in RISKS if risk != limits.risk]
    brief = replace(options, top=1, is_brief=True, most_effort=EFFORT)
    for risk in (risks[0], risks[-1]):
        if options.interrupt.is_asked or deadline.has_passed:
            return
        if risk < limits.risk and best.fit_probability >= 1 - risk:
            yield SafetyChoice(oom_risk=risk, step_s=best.step_s, plan=best.plan)
            continue
        known_s = best.step_s if risk > limits.risk else float("inf")
        other = prepared.at_risk(risk)
        outcome = best_outcome(other, replace(brief, known_s=known_s), deadline)
        yield _choice(risk, outcome, best if risk > limits.risk else None)


def _choice(risk: float, outcome: Outcome, known: PricedPlan | None) -> SafetyChoice:
    """Return the best plan at a risk: a plan known to fit, where none is faster."""
    found = outcome.best
    if known is not None and (found is None or found.step_s >= known.step_s):
        found = known
    return SafetyChoice(
        oom_risk=risk,
        step_s=found.step_s if found else None,
        plan=found.plan if found else None,
        is_proven=outcome.status in ("optimal", "infeasible"),
    )
