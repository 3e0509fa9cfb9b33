"""Reads the text of a file in whichever encoding a terminal or editor saved it."""

from __future__ import annotations

import codecs
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.reading.document import Where
from meshwright.reading.files import read_bytes

MAX_BYTES = 50_000_000
"""Most bytes of a file; the limits of most kinds are lower."""

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The first bytes of a file that `>` of PowerShell writes."""

_MARKS = ("\ufffd", "\0")
"""Characters that no text has: for an undecodable byte, and the zero byte."""

EXPECTED = "what a tool has printed"

MOST_MARKS = 0.1
"""Largest share of marks in a text: a log of a terminal has a few, binaries many."""


def read_text(path: Path) -> str:
    """Return the text of a file, with a mark for each byte that is no text.

    Raises:
        SpecError: there is no such file, it cannot be read, it is too long, or it is
            hardly text.
    """
    content = read_bytes(path, MAX_BYTES, EXPECTED)
    encoding = "utf-16" if content.startswith(_WIDE) else "utf-8-sig"
    text = content.decode(encoding, errors="replace")
    if sum(map(text.count, _MARKS)) > MOST_MARKS * len(text):
        raise SpecError(f"{Where(str(path))}: not text; expected {EXPECTED}")
    return text
