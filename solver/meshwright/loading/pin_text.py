"""Pins as the command line has them: tp=4."""

from __future__ import annotations

import difflib

from meshwright.errors import SpecError
from meshwright.reading.document import Document, FieldPath, Where
from meshwright.reading.messages import shown
from meshwright.reading.yaml_text import parse_yaml
from meshwright.spec.pins import Pins


def add_pin(document: Document, pin: str, path: FieldPath, option: str) -> None:
    """Add 'tp=4' to the fields at a path, as an option of the command line gave it.

    Raises:
        SpecError: the text is no FIELD=VALUE of a plan.
    """
    name, equals, text = pin.partition("=")
    place = Where(f"{option} {shown(pin)[1:-1]}")
    if not equals or not text.strip() or name not in Pins.model_fields:
        raise SpecError(f"{place}: expected FIELD=VALUE; {_near_pin(name)}")
    value = parse_yaml(text, str(place), has_lines=False)
    document.graft((*path, name), value)


def _near_pin(name: str) -> str:
    meant = Pins.OTHER_NAMES.get(name, "").removeprefix("pins.")
    if meant in Pins.model_fields:
        return f"did you mean {meant}? fields: {', '.join(Pins.model_fields)}"
    close = difflib.get_close_matches(name, Pins.model_fields, n=1)
    hint = f"did you mean {close[0]}? " if close and close[0] != name else ""
    return f"{hint}fields: {', '.join(Pins.model_fields)}"
