"""Explains an open spec: why its best choice wins, and which range binds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import ValidationError

from meshwright.deadline import Deadline
from meshwright.explanations.decisions import with_count
from meshwright.explanations.explain import Explainer
from meshwright.planner.open_choices import (
    Chosen,
    OpenChoice,
    choose,
    loss_of,
    open_choices,
)
from meshwright.planner.options import Options
from meshwright.results.explanation import Explanation
from meshwright.results.outcome_parts import NextValue
from meshwright.spec.open_spec import BATCH, COUNT, OpenSpec
from meshwright.spec.spec import Spec


def explain_open(question: OpenSpec, options: Options) -> Explanation:
    """Return why the best plan of the best choice wins, and what binds the choice.

    Where no choice has a plan, it is why the largest one has none.
    """
    deadline = Deadline(options.time_limit_s, options.interrupt)
    chosen = choose(question, options, deadline)
    best = chosen.best
    spec = question.choices[-1] if best is None else best.spec
    told = Explainer(options).spec(spec).model_copy(update={"open": chosen.answer})
    if best is None or told.plan is None:
        return told
    return options.interrupt.unless_asked(
        lambda: told.model_copy(
            update={"next_values": tuple(_next_values(chosen, best))}
        ),
        told,
    )


def _next_values(chosen: Chosen, best: OpenChoice) -> Iterator[NextValue]:
    """Yield the results of the values below and above the chosen ones, by field.

    At an end of the allowed range, that is a value outside it.
    """
    question, spec = chosen.question, best.spec
    is_fixed_machine = (
        len({choice.cluster.topology.name for choice in question.choices}) == 1
    )
    asked = {
        COUNT: (question.counts, spec.cluster.count),
        BATCH: (question.batches, spec.training.global_batch),
    }
    for field, (allowed, value) in asked.items():
        if len(allowed) > 1 and (is_fixed_machine or field == BATCH):
            for other in _neighbours(allowed, value):
                yield _next_value(chosen, best, field, other, other in allowed)


def _neighbours(allowed: tuple[int, ...], value: int) -> Iterator[int]:
    """Yield the values around one; beyond an end, the next at the same distance."""
    place = allowed.index(value)
    below = allowed[place - 1] if place else value - (allowed[1] - allowed[0])
    if below > 0:
        yield below
    is_last = place == len(allowed) - 1
    yield value + (allowed[-1] - allowed[-2]) if is_last else allowed[place + 1]


def _next_value(
    chosen: Chosen, best: OpenChoice, field: str, value: int, is_allowed: bool
) -> NextValue:
    none = NextValue(field=field, value=value, is_allowed=is_allowed, step_s=None)
    try:
        spec = _changed(best.spec, field, value)
    except ValidationError:
        return none
    (other,) = open_choices([spec], chosen.search.options.profile)
    chosen.search.solve(other, math.inf)
    if other.step_s is None:
        return none
    level, loss = loss_of(chosen.levels, other, best)
    told = {"step_s": other.step_s, "level": level, "loss": loss}
    return none.model_copy(update=told)


def _changed(spec: Spec, field: str, value: int) -> Spec:
    """Return a spec with another value of an open field.

    Raises:
        ValidationError: the machines cannot be so many.
    """
    if field == COUNT:
        return with_count(spec, value)
    training = spec.training.model_copy(update={"global_batch": value})
    return spec.model_copy(update={"training": training})
