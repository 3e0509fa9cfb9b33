"""README.md fits a screen or two, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import README, ROOT

MOST_BYTES = 8_192
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def test_it_is_short() -> None:
    assert len(README.read_bytes()) <= MOST_BYTES


@pytest.mark.parametrize("target", sorted(set(LINK.findall(README.read_text("utf-8")))))
def test_a_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_every_page_of_the_site_is_reached_from_its_index() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8").split()
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert names <= set(index)


def test_rates_that_the_faq_tells_stand_in_the_output_below() -> None:
    """Outputs are run and renewed; a sentence above one was not."""
    text = (ROOT / "docs/faq.md").read_text("utf-8")
    told = re.search(r"at ([\d,]+) tokens/s of a GPU with it and ([\d,]+)", text)
    assert told is not None
    output = text[told.end() :].partition("```output\n")[2].partition("```")[0]
    rates = re.findall(r"^(?:True|False) +- +([\d,]+) ", output, re.MULTILINE)
    assert sorted(rates) == sorted(told.groups())
