"""Every command of a table of questions runs, answers, and leaves as the table says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright import catalog
from tests.docs.commands import Command, result_of
from tests.docs.pages import README, ROOT, Page

QUESTIONS = Page(ROOT / "docs/tasks.md")
ROW = re.compile(r"\| `meshwright ([^`]+)`(?: \(exit (\d)\))? \|$", re.MULTILINE)


def _table(page: Page) -> str:
    return page.text.partition("| question | command |")[2].partition("\n\n")[0]


def _asked(page: Page) -> list[Command]:
    rows = ROW.findall(_table(page))
    return [Command.read(f"meshwright {words}", int(code or 0)) for words, code in rows]


@pytest.mark.parametrize(
    "page", [Page(README), QUESTIONS], ids=lambda given: given.path.name
)
def test_each_row_has_a_command(page: Page) -> None:
    rows = [line for line in _table(page).splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == len(_asked(page)) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    dict.fromkeys([*_asked(Page(README)), *_asked(QUESTIONS)]),
    ids=lambda given: " ".join(given.words[1:]),
)
def test_a_question_is_answered(command: Command, tmp_path: Path) -> None:
    result = result_of(command, tmp_path)
    assert result.code == command.code, result.stderr
    assert len(result.stdout.splitlines()) > 5
    assert "error" not in result.stderr


def test_every_bundled_spec_of_serving_is_asked() -> None:
    served = {name for name in catalog.names("specs") if name.startswith("serve-")}
    assert served <= {one.words[2] for one in _asked(QUESTIONS)}
