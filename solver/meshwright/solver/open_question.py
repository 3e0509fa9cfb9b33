"""Solves a spec that leaves machines or sequences open: one search, one certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.deadline import Deadline
from meshwright.results.open_answer import Choice, OpenAnswer
from meshwright.results.outcome import Outcome
from meshwright.solver.open_choices import OpenChoice, OpenSearch
from meshwright.solver.options import Options
from meshwright.solver.pipeline import solve
from meshwright.spec.objective import SIMPLEST, Level
from meshwright.spec.open_spec import OpenSpec

CHOICES_OPEN = "It was stopped before all choices of {} were looked at."


def solve_open(question: OpenSpec, options: Options | None = None) -> Outcome:
    """Return the best plan on the best of the choices that a spec leaves open.

    Choices are compared by the levels of the objective, each by its fastest plan. The
    plan of the best choice is then chosen as if the spec had named it.

    Raises:
        SpecError: a price that the objective needs is not known, or steps take days.
        InternalError: the checker disagrees with the solver about a plan.
    """
    options = options or Options()
    deadline = Deadline(options.time_limit_s, options.interrupt)
    choices = [OpenChoice(i, spec) for i, spec in enumerate(question.choices)]
    levels = [
        level
        for level in question.choices[0].objective.levels
        if level.metric != SIMPLEST
    ]
    search = OpenSearch(options, deadline)
    with options.interrupt.heeded():
        best = search.best(choices, levels)
    answer = _answer(question, choices, levels[-1], best)
    outcome = _outcome(question, search, best, answer)
    return outcome.model_copy(update=_certified(outcome, choices, levels, best, answer))


def _outcome(
    question: OpenSpec, search: OpenSearch, best: OpenChoice | None, answer: OpenAnswer
) -> Outcome:
    """Return all that is told of the plan of the best choice.

    Where none has a plan, it is the nearest miss on the largest one.
    """
    options = replace(search.options, time_limit_s=search.deadline.left_s)
    if best is None:
        return solve(question.choices[-1], options)
    found = search.found
    if found is None or found.choice is not best:
        return solve(best.spec, options)
    if search.deadline.has_passed:
        return found.outcome
    return solve(best.spec, options, found.prepared)


def _answer(
    question: OpenSpec,
    choices: list[OpenChoice],
    level: Level,
    best: OpenChoice | None,
) -> OpenAnswer:
    told = [_told(own, level, best) for own in choices]
    return OpenAnswer(
        fields=question.open_fields,
        level=level.metric,
        chosen=None if best is None else told[best.number],
        choices=tuple(told),
        impossible=question.impossible,
        why_impossible=question.why_impossible,
    )


def _told(own: OpenChoice, level: Level, best: OpenChoice | None) -> Choice:
    cluster, loss = own.spec.cluster, None
    if best is not None and own.verdict != "none_fits":
        loss = own.value(level, own.best_s) / best.value(level, best.best_s) - 1
    has_bound = own.verdict != "none_fits"
    return Choice(
        number=own.number,
        machine=cluster.topology.name,
        count=cluster.count,
        gpus=cluster.gpus,
        global_batch=own.spec.training.global_batch,
        verdict=own.verdict,
        step_s=own.step_s,
        bound_s=own.least_s if has_bound else 0.0,
        loss=loss,
    )


def _certified(
    outcome: Outcome,
    choices: list[OpenChoice],
    levels: list[Level],
    best: OpenChoice | None,
    answer: OpenAnswer,
) -> dict[str, Any]:
    """Return the answer's fields that tell of all choices, not of the best alone."""
    update: dict[str, Any] = {"open": answer}
    is_whole = not any(own.is_stopped for own in choices)
    if best is None or outcome.certificate is None:
        return update | ({} if is_whole else {"status": "unknown"})
    names = tuple(level.metric for level in levels)
    changed: dict[str, Any] = {"levels": names, "choices": answer.closed}
    if not is_whole:
        left = [own for own in choices if own.is_stopped]
        level, worth = levels[-1], best.value(levels[-1], best.best_s)
        least = min(own.value(level, own.least_s) for own in left)
        gap = max(outcome.certificate.gap, 1 - least / worth if worth else 0.0)
        told = CHOICES_OPEN.format(" and ".join(answer.fields))
        changed |= {"gap": gap, "left_open": outcome.certificate.left_open or told}
        update |= {"status": "feasible", "is_stopped": True}
    certificate = outcome.certificate.model_copy(update=changed)
    return update | {"certificate": certificate}
