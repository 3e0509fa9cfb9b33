"""Reads outputs as their real readers do."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from typing import Any

from markdown_it import MarkdownIt

PLAIN = {"h3", "ul", "li", "p", "table", "thead", "tbody", "tr", "th", "td"}
"""What tables and lists of markdown are made of."""

Attributes = list[tuple[str, str | None]]


def expect_seen(text: str) -> None:
    """Expect lines in which each character can be seen."""
    hidden = {one for one in text if not one.isprintable() and one != "\n"}
    assert not hidden, (hidden, text[:2_000])


class Parts(HTMLParser):
    """What a page is made of: its elements with their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Attributes]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        self.elements.append((tag, attrs))
        self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}", []))
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:80]}")

    @property
    def data(self) -> Any:
        """Return the JSON that the page holds."""
        (found,) = (
            text
            for (tag, attrs), text in zip(self.elements, self.texts, strict=True)
            if tag == "script" and dict(attrs).get("id") == "data"
        )
        assert not set("<>&\u2028\u2029") & set(found)
        return json.loads(found)


def markdown_texts(text: str) -> list[str]:
    """Return the texts of headings, items and cells; there may be nothing else."""
    expect_seen(text)
    page = MarkdownIt("commonmark").enable("table").render(text)
    parts = Parts(page)
    assert {tag.strip("/") for tag, _ in parts.elements} <= PLAIN, page
    assert not [a for _, attrs in parts.elements for a in attrs], page
    return [one for one in parts.texts if one.strip()]


def csv_rows(text: str) -> list[list[str]]:
    """Return the cells of a table, as their docstring says to read them.

    No cell is one that a spreadsheet would compute, and all rows are of one length.
    """
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len({len(row) for row in rows}) == 1
    for cell in (cell for row in rows for cell in row):
        assert _is_number(cell) or not cell.lstrip().startswith(tuple("=+-@")), cell
        assert cell[:1] not in ("\t", "\r", "\n"), cell
    return [[cell.removeprefix("'") for cell in row] for row in rows]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
