"""Every command of the README's table of questions runs, and answers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.command import run

README = Path(__file__).parents[2] / "README.md"
HEADING = "## Questions it answers"


def commands() -> list[str]:
    section = README.read_text(encoding="utf-8").split(HEADING)[1].split("\n## ")[0]
    return re.findall(r"`meshwright ([^`]+)`", section)


def test_each_row_has_a_command() -> None:
    section = README.read_text(encoding="utf-8").split(HEADING)[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert rows
    assert all("`meshwright " in row for row in rows)


@pytest.mark.parametrize("command", commands())
def test_a_question_is_answered(command: str) -> None:
    result = run(*shlex.split(command))
    assert result.code in (0, 1), result.stderr
    assert result.stdout.strip()
    assert "error" not in result.stderr
