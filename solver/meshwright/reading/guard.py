"""Checks YAML text before values are built from it, so that no input does harm.

The events of the parser are counted one by one: text that nests too deep or has too
many values is refused before the reader spends memory or time on it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

from meshwright.errors import SpecError
from meshwright.reading.document import Where

MAX_DEPTH = 40
"""Most levels of nesting in any file."""


_GAP = 1_024 // MAX_DEPTH
"""Characters between brackets at which the parser opens no more than `MAX_DEPTH` of
them before it tells an event: it reads 1,024 ahead, as long as a key may be."""

_CROWD = re.compile(rf"(?:[\[{{][^\[{{\n]{{0,{_GAP - 1}}}){{{MAX_DEPTH + 1},}}")
"""More brackets, with less between them, than files have that people write."""


class Limits(NamedTuple):
    """Limits on the size of files of a kind."""

    most_bytes: int = 1_000_000
    most_values: int = 20_000
    """Most values, after anchors are expanded."""


SPECS = Limits()

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def line_of(name: str, mark: Any, has_lines: bool = True) -> Where:
    """Return the place of a mark; text from the command line has no lines."""
    return Where(name, mark.line + 1 if mark and has_lines else 0)


def guard(text: str, name: str, has_lines: bool = True, limits: Limits = SPECS) -> None:
    """Refuse YAML text that is empty, too large, too deep, tagged, or two documents.

    Raises:
        SpecError: names the line and the limit.
    """
    documents = values = depth = 0
    for event in yaml.parse(_spread(text), Loader=Loader):
        here = line_of(name, event.start_mark, has_lines)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > 1:
            raise SpecError(f"{here}: a second document starts; expected one")
        if isinstance(event, yaml.NodeEvent):
            values += 1
            _check_tag(event, here)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        check_size(values, depth, here, limits)
    if not values:
        raise SpecError(f"{name}: empty; expected YAML fields")


def _spread(text: str) -> str:
    """Return text whose depth is told before the parser passes a limit of its own.

    Blanks after a bracket change neither the structure nor the lines.
    """
    return _CROWD.sub(
        lambda crowd: re.sub(r"[\[{]", lambda found: found[0] + " " * _GAP, crowd[0]),
        text,
    )


def check_size(values: int, depth: int, here: Where, limits: Limits) -> None:
    """Refuse more values or deeper nesting than any file of a kind has.

    Raises:
        SpecError: names the line and the limit.
    """
    if values > limits.most_values:
        raise SpecError(f"{here}: expected at most {limits.most_values:,} values")
    if depth > MAX_DEPTH:
        raise SpecError(f"{here}: expected at most {MAX_DEPTH} levels of nesting")


def _check_tag(event: yaml.NodeEvent, here: Where) -> None:
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise SpecError(f"{here}: the tag {tag!r:.60}: expected plain YAML, no tags")
