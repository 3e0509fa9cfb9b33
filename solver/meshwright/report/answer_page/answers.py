"""What the page tells of each kind of answer, beside the charts of its plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.plans.simplicity import technique_names
from meshwright.report.answer_page.plan_data import rounded
from meshwright.report.compare import FASTEST_OF_THESE, compare_sections
from meshwright.report.explain import explain_sections
from meshwright.report.framework_limits import framework_limit_sections
from meshwright.report.proof import proof_sections
from meshwright.report.safety import safety_lines
from meshwright.report.simulation import simulation_sections
from meshwright.report.solve import answer_lines, choice_sections
from meshwright.report.tables import Lines, Section, seconds_text
from meshwright.report.training_run import run_sections
from meshwright.results.claims import proof_claim
from meshwright.results.comparison import Comparison
from meshwright.results.explanation import Change, Explanation
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.simulation import Simulation
from meshwright.results.timeline import NearPlan

Solved = Outcome | Explanation | Comparison

Answer = Solved | Simulation

Group = tuple[str, str, Sequence[Section]]
"""Id and title of a part of the page, and what stands in it."""


@dataclass(frozen=True)
class Told:
    """What the page tells of an answer."""

    title: str
    verdict: Sequence[str]
    groups: Sequence[Group]
    near: Sequence[dict[str, Any]] = ()
    worth: Sequence[dict[str, Any]] = field(default_factory=list)
    has_plan: bool = True
    """Whether a plan fits; if none does, the reasons come first."""
    is_comparison: bool = False
    risk: float = 0.0
    """The risk of running out of memory that the spec accepts."""
    histogram: dict[str, Any] | None = None
    """The step times of a simulation."""


def told_of(answer: Answer, near: Iterable[NearPlan], risk: float) -> Told:
    """Return what the page tells of an answer, and of plans near the fastest.

    `risk` is that of running out of memory which the spec accepts.
    """
    return replace(_told(answer, [_near(plan) for plan in near]), risk=risk)


def _told(answer: Answer, known: list[dict[str, Any]]) -> Told:
    if isinstance(answer, Outcome):
        return _of_outcome(answer, known)
    if isinstance(answer, Explanation):
        return _of_explanation(answer, known)
    if isinstance(answer, Simulation):
        return _of_simulation(answer)
    sections = compare_sections(answer)[1:]
    groups = [("compared", "The comparison in full", sections)]
    lines = tuple(_comparison_lines(answer))
    return Told(answer.title, lines, groups, known, is_comparison=True)


def _of_outcome(outcome: Outcome, near: list[dict[str, Any]]) -> Told:
    best = outcome.best
    if best is None:
        return Told(outcome.title, answer_lines(outcome).lines, (), has_plan=False)
    fastest_s = (outcome.optimum or best).step_s
    limits = framework_limit_sections(outcome.framework_limits, fastest_s)
    groups: list[Group] = [
        ("choices", "What else was found", [*choice_sections(outcome), *limits]),
        ("safety", "How safe", [safety_lines(best, outcome)]),
        ("run", "The run", run_sections(outcome.run)),
        ("proof", "How sure, and the certificate", [*proof_sections(outcome)]),
    ]
    return Told(outcome.title, _outcome_lines(outcome), groups, near)


def _outcome_lines(outcome: Outcome) -> tuple[str, ...]:
    best, claim = outcome.best, proof_claim(outcome)
    assert best is not None
    rate = f"{best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    speed = f"{seconds_text(best.step_s)} a step, {rate}, MFU {best.mfu:.1%}."
    if not claim:
        return (f"The plan takes {speed}",)
    return f"The recommended plan takes {speed}", claim


def _of_explanation(explanation: Explanation, near: list[dict[str, Any]]) -> Told:
    first, *others = explain_sections(explanation)
    groups: list[Group] = [("why", "The explanation in full", others)]
    if explanation.best is not None:
        groups.append(
            (
                "proof",
                "How sure, and the certificate",
                [*proof_sections(explanation.best)],
            )
        )
    lines = first.lines if hasattr(first, "lines") else ()
    worth = list(_worth(explanation))
    return Told(explanation.title, lines, groups, near, worth, explanation.fits)


def _of_simulation(told: Simulation) -> Told:
    first, *others = simulation_sections(told)
    groups: list[Group] = [("simulated", "The simulation in full", others)]
    histogram = {
        "samples": told.samples,
        "edges": [rounded(edge) for edge in told.histogram.edges],
        "counts": told.histogram.counts,
        "undisturbedS": rounded(told.schedule_s),
        "medianS": rounded(told.step_s.median),
        "p99S": rounded(told.step_s.p99),
    }
    lines = first.lines if isinstance(first, Lines) else ()
    return Told(told.title, lines, groups, histogram=histogram)


def _worth(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Yield the changes that were solved again, with what each of them gains."""
    plan, outcome = explanation.plan, explanation.best
    if plan is None:
        return
    fastest = outcome.optimum if outcome and outcome.optimum else plan
    kinds: tuple[tuple[str, PricedPlan, tuple[Change, ...]], ...] = (
        ("without it", fastest, explanation.binding),
        ("left open", plan, explanation.helps),
        ("a little more", fastest, explanation.marginal_values),
    )
    for kind, before, changes in kinds:
        for change in changes:
            rate = change.tokens_per_s_per_gpu
            gain = rate / before.tokens_per_s_per_gpu - 1 if rate else None
            yield {
                "change": change.change,
                "kind": kind,
                "stepS": change.step_s,
                "gain": gain,
            }


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    fitting = [(own.name, own.plan) for own in comparison.plans if own.plan]
    if not fitting:
        yield "None of the plans fits."
    for rank, (name, plan) in enumerate(fitting[:2]):
        if rank == 0:
            yield f"{name} is {FASTEST_OF_THESE}: {seconds_text(plan.step_s)} a step."
        else:
            loss = plan.step_s / fitting[0][1].step_s - 1
            yield f"Next is {name}, {loss:.1%} slower."
    for one in comparison.plans:
        if one.plan is None:
            yield f"{one.name} does not fit: {'; '.join(map(str, one.broken_rules))}"


def _near(near: NearPlan) -> dict[str, Any]:
    priced = near.priced
    return {
        "plan": priced.plan.brief,
        "why": near.why,
        "isFirst": near.is_first,
        "stepS": rounded(priced.step_s),
        "risk": rounded(1 - priced.fit_probability),
        "techniques": technique_names(priced.plan),
    }
