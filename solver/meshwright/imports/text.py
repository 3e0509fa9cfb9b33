"""Text of other tools: read in any encoding, as numbered lines without colours."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple, NoReturn

from meshwright.errors import SpecError
from meshwright.reading.document import Where
from meshwright.reading.guard import read_bytes

MAX_CHARS = 8_000_000
"""Most characters of a text; a fabric of 10,000 ports takes about 2 million."""

_COLOUR = re.compile(
    r"(?:\x1b|\^\[|\\x1b|\\033|\\e|\\u001b)?\[[0-9;]{1,8}m|\x1b\[[0-9;?]{0,8}[A-Za-z]"
)
"""Select Graphic Rendition, also where a copy lost or spelled out the escape; other
control sequences with it alone."""

CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127))
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


def without_colours(text: str) -> str:
    """Return a text without what makes a terminal change colours."""
    return _COLOUR.sub("", text)


def read_lines(text: str, name: str) -> list[Line]:
    """Return the lines of a text without colours, control characters and odd blanks.

    Raises:
        SpecError: the text is too long.
    """
    check_length(text, name)
    plain = without_colours(text.lstrip("\ufeff").replace("\xa0", " "))
    lines = _LINE_END.split(plain.translate(CONTROLS))
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


MAX_BYTES = 50_000_000
"""Most bytes of a file; the limits of most kinds are lower."""

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The first bytes of a file that `>` of PowerShell writes."""

SEEN = 2_000
"""Bytes from the start of a file by which its encoding is told."""

_MARKS = ("\ufffd", "\0")
"""Characters that no text has: for an undecodable byte, and the zero byte."""

EXPECTED = "what a tool has printed"

MOST_MARKS = 0.1
"""Largest share of marks in a text: a log of a terminal has a few, binaries many."""


STDIN = Path("-")
"""Stands for the standard input, which is read once."""


def read_text(path: Path) -> str:
    """Return the text of a file, with a mark for each byte that is no text.

    Raises:
        SpecError: there is no such file, it cannot be read, it is too long, or it is
            hardly text.
    """
    content = _stdin() if path == STDIN else read_bytes(path, MAX_BYTES, EXPECTED)
    text = content.decode(_encoding(content), errors="replace")
    if sum(map(text.count, _MARKS)) > MOST_MARKS * len(text):
        raise SpecError(f"{Where(str(path))}: not text; expected {EXPECTED}")
    return text


@cache
def _stdin() -> bytes:
    content = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SpecError(f"-: expected at most {MAX_BYTES:,} bytes; {EXPECTED}")
    return content


def _encoding(content: bytes) -> str:
    """Return the encoding of a file: UTF-16 also without its first two bytes."""
    if content.startswith(_WIDE):
        return "utf-16"
    start = content[:SEEN]
    zeros = [start[at::2].count(0) for at in (0, 1)]
    if max(zeros) > 0.4 * len(start) and not min(zeros):
        return "utf-16-be" if zeros[0] else "utf-16-le"
    return "utf-8-sig"
