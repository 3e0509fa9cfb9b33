"""Writes an answer about serving as one HTML page."""

from __future__ import annotations

from meshwright.errors import SpecError
from meshwright.report.answer_page.answers import Answer
from meshwright.report.answer_page.page import page_of, told_data
from meshwright.report.answer_page.serving_data import (
    ServingAnswer,
    outcome_of,
    serving_plan_data,
    serving_told,
)
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec


def serving_report(spec: Spec | ServingSpec, answer: Answer | ServingAnswer) -> str:
    """Return the page of an answer: times by part, memory, and all that is told.

    Raises:
        SpecError: one of spec and answer is about training.
    """
    if not (isinstance(spec, ServingSpec) and isinstance(answer, ServingAnswer)):
        raise SpecError("answer: is of another spec: one of both is about training")
    best = outcome_of(answer).best
    gpu = spec.cluster.topology.gpu
    drawn = [] if best is None else [serving_plan_data(best, gpu)]
    return page_of(told_data(serving_told(answer), drawn))
