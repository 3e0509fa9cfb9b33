"""Reads plans: `tp=8,pp=2`, a file of fields, an answer's JSON, or what starts one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.imports.read import launch_kind
from meshwright.imports.text import read_text
from meshwright.loading.launched_plan import read_launched
from meshwright.loading.pin_text import add_pin
from meshwright.reading.document import Document, Where
from meshwright.reading.messages import explain
from meshwright.reading.yaml_text import read_yaml
from meshwright.spec.pins import Pins
from meshwright.spec.plan_fields import FIELD
from meshwright.spec.serving import Question

LONGEST_PLAN = 10_000
"""Most characters of a plan on the command line; all fields take a few hundred."""


def read_plan(
    text: str, spec: Question | None = None, notes: list[str] | None = None
) -> Pins:
    """Return the fields of a plan, from text or from a file.

    A file holds the fields of pins, what `solve --format json` printed, or the
    configuration with which a framework starts.

    Args:
        text: The fields, or the name of a file.
        spec: The question that the plan is for; a configuration must not contradict it.
        notes: Gets what is said of the options of a configuration.

    Raises:
        SpecError: names the field or the option, its value and what is accepted.
    """
    if os.path.isfile(text) and _is_launch(Path(text)):
        return read_launched(Path(text), spec, notes)
    document = _document(text)
    try:
        return Pins.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(explain(document, error, Pins)) from None


def _is_launch(path: Path) -> bool:
    """Return whether a file is a configuration with which a framework starts."""
    try:
        return launch_kind(read_text(path)) is not None
    except SpecError:
        return False


def _document(text: str) -> Document:
    if os.path.isfile(text):
        document = read_yaml(Path(text))
        if not isinstance(document.data, dict):
            raise SpecError(f"{text}: expected the fields of a plan, as a mapping")
        if isinstance(document.data.get("plan"), dict):
            document.data = pins_of_answer(document.data["plan"])
        return document
    if len(text) > LONGEST_PLAN:
        told = f"expected a file, or at most {LONGEST_PLAN:,} characters"
        raise SpecError(f"--plan: {len(text):,} characters; {told}")
    document = Document({}, {(): Where("--plan")})
    for part in _parts(text):
        add_pin(document, part.strip(), (), "--plan")
    return document


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas, except for commas inside brackets."""
    start, depth = 0, 0
    for index, char in enumerate(text):
        depth += (char in "[{") - (char in "]}")
        if char == "," and depth <= 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def pins_of_answer(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the pins that fix every field of the plan in an answer."""
    pins = {name: plan[name] for name in (*FIELD, "mesh") if name in plan}
    stages = plan.get("stages")
    if isinstance(stages, list) and all(isinstance(stage, dict) for stage in stages):
        pins["layers"] = [stage.get("layers") for stage in stages]
        pins["recompute_layers"] = [stage.get("recompute_layers") for stage in stages]
    return pins
