"""Reads the text of a file, however a terminal or an editor has saved it."""

from __future__ import annotations

import codecs
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.spec.places import Where

MAX_BYTES = 50_000_000
"""Above what any kind takes; most take less."""

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How PowerShell starts what `>` writes."""


def read_text(path: Path) -> str:
    """Return the text of a file; bytes that are no text become a mark.

    Raises:
        SpecError: there is no such file, it cannot be read, or it is too long.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(
            f"{Where(str(path))}: {(error.strerror or 'unreadable').lower()}"
        ) from None
    except ValueError:
        raise SpecError(f"{str(path)!r}: no such file") from None
    if len(content) > MAX_BYTES:
        raise SpecError(f"{Where(str(path))}: expected at most {MAX_BYTES:,} bytes")
    encoding = "utf-16" if content.startswith(_WIDE) else "utf-8-sig"
    return content.decode(encoding, errors="replace")
