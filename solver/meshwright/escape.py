r"""Writes a user's text into pages, tables and terminals as text, never as code.

Every writer passes what it does not know through the function of its kind of file:
`printable` for terminals and messages, `in_html` and `in_script` for pages,
`in_markdown` for tables and lists, `in_csv` for spreadsheets. JSON, Parquet and the
store of a search hold text exactly as it was given.
"""

from __future__ import annotations

import re
from html import escape as _html_escape
from typing import Any

_ENDS_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
"""Signs that could end a script or begin markup; JSON reads escapes as the signs."""

_SPANS = re.compile(r"[\\`*~\[\]|]|(?<!\w)_|_(?!\w)")
"""Marks of markdown within a line; underscores inside words are plain there."""

_BLOCKS = re.compile(r"^(\d{0,9})([#+.)-]+)(?=\s)")
"""Marks of markdown at the start of a line."""

_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n']")
"""How text starts that a spreadsheet computes, wide signs too; and the mark of text."""


def printable(text: str) -> str:
    r"""Return one line in which each character can be seen, others as in `\x1b`.

    Control characters (line ends and escape sequences among them), invisible ones and
    those that turn the direction of writing are spelled out.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _spelled(sign) for sign in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def printable_lines(text: str) -> str:
    """Return text of several lines, each of them printable."""
    return "\n".join(map(printable, text.split("\n")))


def in_html(text: str) -> str:
    """Return text as the content of an element or of an attribute in quotes."""
    return _html_escape(text)


def in_script(json: str) -> str:
    """Return JSON that stands in an element `script` and means the same."""
    return json.translate(_ENDS_SCRIPT)


def in_markdown(text: str) -> str:
    """Return text as a cell, an item of a list or a heading shows it.

    HTML's own signs become entities, which every dialect reads; a backslash before
    `<` is read by some alone.
    """
    marked = _BLOCKS.sub(r"\1\\\2", _SPANS.sub(r"\\\g<0>", printable(text)))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def in_csv(value: Any) -> Any:
    """Return a value as a cell that no spreadsheet computes; numbers stay numbers.

    Text that starts as a formula does (`=`, `+`, `-`, `@`, a tab or a line end), or
    with an apostrophe, gets an apostrophe in front, as OWASP advises against CSV
    injection. Whoever reads the file has the text back by dropping one apostrophe from
    cells that start with one.
    """
    is_formula = isinstance(value, str) and _FORMULA.match(value)
    return f"'{value}" if is_formula else value
