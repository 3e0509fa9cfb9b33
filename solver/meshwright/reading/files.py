"""Reads files that may be anything: refuses long ones, and those that are no text."""

from __future__ import annotations

import os
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.reading.document import Where

KINDS = {
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"\x1f\x8b": "an archive of gzip",
    b"PK\x03\x04": "an archive of zip",
    b"\x89PNG": "a picture",
    b"SQLite format 3\0": "a database of SQLite",
}
"""The first bytes of files that hold no text, and what such files are."""


def is_folder(path: str | Path) -> bool:
    """Return whether there is such a folder; no name is too long to ask."""
    return os.path.isdir(path)


def is_file(path: str | Path) -> bool:
    """Return whether there is such a file; no name is too long to ask."""
    return os.path.isfile(path)


def read_bytes(path: Path, most: int, expected: str) -> bytes:
    """Return the content of a file that may hold text.

    No more than the limit is read, so that devices without an end do no harm.

    Raises:
        SpecError: the file cannot be read, is longer than `most` bytes, or is of a
            kind that holds no text; says what is `expected`.
    """
    here = Where(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise SpecError(f"{here}: {(error.strerror or 'unreadable').lower()}") from None
    except ValueError:
        raise SpecError(f"{str(path)!r}: no such file") from None
    if len(content) > most:
        raise SpecError(f"{here}: expected at most {most:,} bytes")
    for start, kind in KINDS.items():
        if content.startswith(start):
            raise SpecError(f"{here}: {kind}; expected {expected}")
    return content


def read_text(path: Path, most: int, expected: str) -> str:
    """Return the text of a file in UTF-8, whose byte order mark is left out.

    Raises:
        SpecError: see `read_bytes`; or names the line that is not UTF-8, and what is
            `expected`.
    """
    content = read_bytes(path, most, expected)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        here = Where(str(path), content.count(b"\n", 0, error.start) + 1)
        problem = f"byte {error.start} is not UTF-8 text; expected {expected}"
        raise SpecError(f"{here}: {problem}") from None
