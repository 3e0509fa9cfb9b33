"""Reads text of other tools as numbered lines, without the colours of a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from meshwright.errors import SpecError
from meshwright.reading.document import Where

MAX_CHARS = 8_000_000
"""Most characters of a text; a fabric of 10,000 ports takes about 2 million."""

_COLOUR = re.compile(
    r"(?:\x1b|\^\[|\\x1b|\\033|\\e|\\u001b)?\[[0-9;]{1,8}m|\x1b\[[0-9;?]{0,8}[A-Za-z]"
)
"""Select Graphic Rendition, also where a copy lost or spelled out the escape; other
control sequences with it alone."""

_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127))
"""Characters that no tool prints, other than tabs and line ends."""

_LINE_END = re.compile(r"\r\n|\r|\n")


class Line(NamedTuple):
    """A line of a file, counted from one."""

    number: int
    text: str


def fail(name: str, line: int, sentence: str) -> NoReturn:
    """Raise the error that names file and line; line 0 is the whole file.

    Raises:
        SpecError: always.
    """
    raise SpecError(f"{Where(name, line)}: {sentence}")


def check_length(text: str, name: str) -> None:
    """Refuse text that is longer than any tool prints.

    Raises:
        SpecError: names the limit.
    """
    if len(text) > MAX_CHARS:
        fail(name, 0, f"expected at most {MAX_CHARS:,} characters")


def read_lines(text: str, name: str) -> list[Line]:
    """Return the lines of a text without colours, control characters and odd blanks.

    Raises:
        SpecError: the text is too long.
    """
    check_length(text, name)
    plain = _COLOUR.sub("", text.lstrip("\ufeff").replace("\xa0", " "))
    lines = _LINE_END.split(plain.translate(_CONTROLS))
    return [Line(number, line) for number, line in enumerate(lines, 1)]


def whole(text: str, most: int = 10**15) -> int | None:
    """Return a whole number that is written in plain digits; None for others."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        return None
    return int(text) if int(text) <= most else None


def shown(value: str) -> str:
    """Return a text as messages quote it: shortened and printable."""
    return repr(value if len(value) <= 60 else value[:57] + "...")


def known(names: Iterable[str]) -> str:
    """Return the end of a message, which lists what is accepted."""
    return "accepted: " + ", ".join(names)
