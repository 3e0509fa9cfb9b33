"""A table in HTML, as notebooks show it; all text in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.escape import in_html, printable

Rows = Iterable[tuple[str, ...]]
"""The cells of each row; the first one is its heading."""


def html_table(caption: str, rows: Rows) -> str:
    """Return a table with a caption; the first cell of a row is its heading."""
    body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    return f"<table><caption>{_text(caption)}</caption><tbody>{body}</tbody></table>"


def _cells(row: tuple[str, ...]) -> Iterable[str]:
    first, *others = row
    yield f'<th style="text-align: left">{_text(first)}</th>'
    for cell in others:
        yield f'<td style="text-align: left">{_text(cell)}</td>'


def _text(text: str) -> str:
    return in_html(printable(text))
