"""Solves a spec that leaves machines or sequences open: one search, one certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from meshwright.deadline import Deadline
from meshwright.results.open_answer import Choice, ClosedChoices, OpenAnswer
from meshwright.results.outcome import Outcome
from meshwright.search.options import Options
from meshwright.solver.open_choices import OpenChoice, OpenSearch, loss_of, open_choices
from meshwright.solver.pipeline import solve
from meshwright.spec.objective import SIMPLEST, Level
from meshwright.spec.open_spec import OpenSpec

CHOICES_OPEN = "It was stopped before all choices of {} were looked at."


@dataclass(frozen=True)
class Chosen:
    """The best of the choices of an open spec, and the search that proved it."""

    question: OpenSpec
    search: OpenSearch
    choices: list[OpenChoice]
    levels: list[Level]
    best: OpenChoice | None
    """None where no choice has a plan."""

    @property
    def is_whole(self) -> bool:
        """Return whether every choice was looked at to its end."""
        return not any(own.is_stopped for own in self.choices)

    @cached_property
    def answer(self) -> OpenAnswer:
        """Return the choice as data."""
        told = [_told(own, self.levels, self.best) for own in self.choices]
        return OpenAnswer(
            fields=self.question.open_fields,
            levels=tuple(level.metric for level in self.levels),
            chosen=None if self.best is None else told[self.best.number],
            choices=tuple(told),
            closed=ClosedChoices.of(own.verdict for own in told),
            impossible=self.question.impossible,
            why_impossible=self.question.why_impossible,
        )


def choose(question: OpenSpec, options: Options, deadline: Deadline) -> Chosen:
    """Return the best of the choices that a spec leaves open, by its objective.

    Raises:
        SpecError: a price that the objective needs is not known, or steps take days.
    """
    choices = open_choices(question.choices, options.profile)
    every = question.choices[0].objective.levels
    levels = [level for level in every if level.metric != SIMPLEST]
    search = OpenSearch(options, deadline)
    with options.interrupt.heeded():
        best = search.best(choices, levels)
    return Chosen(question, search, choices, levels, best)


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
    chosen = choose(question, options, deadline)
    outcome = _outcome(chosen)
    options.interrupt.is_heeded = True
    return outcome.model_copy(update=_certified(chosen, outcome))


def _outcome(chosen: Chosen) -> Outcome:
    """Return all that is told of the plan of the best choice.

    Where none has a plan, it is the nearest miss on the largest one.
    """
    search, best = chosen.search, chosen.best
    options = replace(search.options, time_limit_s=search.deadline.left_s)
    if best is None:
        return solve(chosen.question.choices[-1], options)
    if search.deadline.has_passed and best.outcome is not None:
        return best.outcome.model_copy(update={"title": best.spec.title})
    last = search.last
    is_prepared = last is not None and last.choice is best
    return solve(best.spec, options, last.prepared if last and is_prepared else None)


def _told(own: OpenChoice, levels: list[Level], best: OpenChoice | None) -> Choice:
    cluster, fits = own.spec.cluster, own.verdict != "none_fits"
    level, loss = loss_of(levels, own, best) if best and fits else (None, None)
    return Choice(
        number=own.number,
        machine=cluster.topology.name,
        count=cluster.count,
        gpus=cluster.gpus,
        global_batch=own.spec.training.global_batch,
        verdict=own.verdict,
        step_s=own.step_s,
        bound_s=own.least_s if fits else 0.0,
        level=level,
        loss=loss,
    )


def _certified(chosen: Chosen, outcome: Outcome) -> dict[str, Any]:
    """Return the answer's fields that tell of all choices, not of the best alone."""
    answer, best, certificate = chosen.answer, chosen.best, outcome.certificate
    update: dict[str, Any] = {"open": answer}
    if best is None or certificate is None:
        return update | ({} if chosen.is_whole else {"status": "unknown"})
    if chosen.is_whole:
        return update
    told = CHOICES_OPEN.format(" and ".join(answer.fields))
    gap = max(certificate.gap, _gap(chosen, best))
    changed = {"gap": gap, "left_open": certificate.left_open or told}
    update |= {"status": "feasible", "is_stopped": chosen.search.deadline.has_passed}
    return update | {"certificate": certificate.model_copy(update=changed)}


def _gap(chosen: Chosen, best: OpenChoice) -> float:
    """Return how much better a choice that was left open may be, as a share."""
    left = [own for own in chosen.choices if own.is_stopped]
    losses = [loss_of(chosen.levels, own, best)[1] for own in left]
    return max(0.0, -min(losses))
