"""Reads the text of a plan that is asked about, as its framework launches it."""

from __future__ import annotations

from meshwright.loading.plan_text import read_plan
from meshwright.spec.pins import Pins
from meshwright.spec.serving import Question
from meshwright.spec.spec import Spec


def read_asked(text: str, spec: Question, notes: list[str] | None = None) -> Pins:
    """Return the fields of a plan from text or a file, as `read_plan` takes it.

    `notes` gets what is said of the options of a configuration, and what was added.

    Raises:
        SpecError: names the field or the option, its value and what is accepted.
    """
    return launched(read_plan(text, spec, notes), spec, notes)


def launched(pins: Pins, spec: Question, notes: list[str] | None = None) -> Pins:
    """Return a plan with what its framework does where a launch leaves it out."""
    if not isinstance(spec, Spec):
        return pins
    # Not before: errors in the text come without the frameworks, which take a while.
    from meshwright.frameworks.base.selective import as_launched

    return as_launched(pins, spec, notes)
