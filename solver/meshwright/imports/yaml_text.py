"""Imports as YAML text: where they come from and what was assumed, then the data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshwright.escape import printable, printable_lines

WIDTH = 100
"""Columns of the data; comments stay on one line each."""


def as_yaml(made_from: str, notes: Iterable[str], data: dict[str, Any]) -> str:
    """Return data as YAML, below comments."""
    lines = [f"Made from {made_from}.", *notes]
    comments = "".join(f"# {printable(line)}\n" for line in lines)
    return comments + "".join(_field(name, value) for name, value in data.items())


def _field(name: str, value: Any) -> str:
    """Return a field; of a list of mappings each one on a line, where it fits."""
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return _dump({name: value}, None if isinstance(value, list | dict) else False)
    lines = [_dump([item], True).strip()[1:-1] for item in value]
    if max(map(len, lines)) > WIDTH:
        return _dump({name: value}, None)
    return f"{name}:\n" + "".join(f"- {line}\n" for line in lines)


def _dump(data: Any, style: bool | None) -> str:
    """Return data as YAML; other letters stay, but for what cannot be seen."""
    import yaml

    width = float("inf") if style else WIDTH
    form: dict[str, Any] = {"sort_keys": False, "default_flow_style": style}
    text = str(yaml.safe_dump(data, width=width, allow_unicode=True, **form))
    if printable_lines(text) == text:
        return text
    return str(yaml.safe_dump(data, width=width, **form))
