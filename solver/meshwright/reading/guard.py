"""Files of text that are read within limits of size and depth."""

from __future__ import annotations

import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path
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
        if isinstance(event, yaml.NodeEvent):
            values += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
            problem = _tag_of(event) or excess(values, depth, limits)
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            problem = "a second document starts; expected one" * (documents > 1)
        else:
            depth -= isinstance(event, yaml.CollectionEndEvent)
            continue
        if problem:
            raise SpecError(f"{line_of(name, event.start_mark, has_lines)}: {problem}")
    if not values:
        raise SpecError(f"{name}: empty; expected YAML fields")


def _spread(text: str) -> str:
    """Return text in which excess depth is found before the parser reaches its limit.

    Blanks after a bracket change neither the structure nor the lines.
    """
    return _CROWD.sub(
        lambda crowd: re.sub(r"[\[{]", lambda found: found[0] + " " * _GAP, crowd[0]),
        text,
    )


def excess(values: int, depth: int, limits: Limits) -> str:
    """Return which limit more values or deeper nesting pass, or nothing."""
    if values > limits.most_values:
        return f"expected at most {limits.most_values:,} values"
    if depth > MAX_DEPTH:
        return f"expected at most {MAX_DEPTH} levels of nesting"
    return ""


def check_size(values: int, depth: int, here: Where, limits: Limits) -> None:
    """Refuse more values or deeper nesting than any file of a kind has.

    Raises:
        SpecError: names the line and the limit.
    """
    if problem := excess(values, depth, limits):
        raise SpecError(f"{here}: {problem}")


def _tag_of(event: yaml.NodeEvent) -> str:
    """Return why the tag of a value is refused, or nothing if it has none."""
    tag = getattr(event, "tag", None)
    return "" if tag is None else f"the tag {tag!r:.60}: expected plain YAML, no tags"


KINDS = {
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"\x1f\x8b": "an archive of gzip",
    b"PK\x03\x04": "an archive of zip",
    b"\x89PNG": "a picture",
    b"SQLite format 3\0": "a database of SQLite",
}
"""The first bytes of files that hold no text, with the kind of file."""


def is_folder(path: str | Path) -> bool:
    """Return whether a folder exists; False for a name that is too long."""
    return os.path.isdir(path)


def is_file(path: str | Path) -> bool:
    """Return whether a file exists; False for a name that is too long."""
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
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark.

    Raises:
        SpecError: see `read_bytes`; or names the line that is not UTF-8, and what is
            `expected`.
    """
    content = read_bytes(path, most, expected)
    is_wide = content.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    if not is_wide and b"\0" in content[:2]:
        told = f"UTF-16 without a byte order mark; expected {expected} in UTF-8"
        raise SpecError(f"{Where(str(path))}: {told}")
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        here = Where(str(path), content.count(b"\n", 0, error.start) + 1)
        name = "UTF-16" if is_wide else "UTF-8"
        problem = f"byte {error.start} is not {name} text; expected {expected}"
        raise SpecError(f"{here}: {problem}") from None
    return text.replace("\r\n", "\n") if is_wide else text
