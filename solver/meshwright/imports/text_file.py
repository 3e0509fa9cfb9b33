"""Reads the text of a file, however a terminal or an editor has saved it."""

from __future__ import annotations

import codecs
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.reading.document import Where
from meshwright.reading.files import read_bytes

MAX_BYTES = 50_000_000
"""Above what any kind takes; most take less."""

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How PowerShell starts what `>` writes."""

_MARKS = ("\ufffd", "\0")
"""What stands for a byte that is no text, and what no text has."""

EXPECTED = "what a tool has printed"

MOST_MARKS = 0.1
"""Share of a text; a terminal's log has a few, other files are full of them."""


def read_text(path: Path) -> str:
    """Return the text of a file; bytes that are no text become a mark.

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
