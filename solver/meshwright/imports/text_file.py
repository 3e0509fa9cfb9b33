"""Reads the text of a file in whichever encoding a terminal or editor saved it."""

from __future__ import annotations

import codecs
import sys
from functools import cache
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.reading.document import Where
from meshwright.reading.files import read_bytes

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
