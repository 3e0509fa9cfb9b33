"""Generated tables leave no field and no option unexplained."""

from __future__ import annotations

import pytest

from extensions import commands, fields, public
from meshwright.cli import app
from tests.docs.commands import commands_of
from tests.docs.pages import blocks_of


def _without_meaning(markdown: str) -> list[str]:
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [row for row in rows if row.endswith("|  |")]


@pytest.mark.parametrize("section", fields.MODELS)
def test_every_field_of_a_file_has_a_meaning(section: str) -> None:
    assert _without_meaning(fields.table(section)) == []


def test_every_option_has_a_meaning() -> None:
    assert _without_meaning(commands.reference()) == []


def test_every_field_of_an_answer_has_a_meaning() -> None:
    assert _without_meaning(public.reference()) == []


def test_every_command_is_shown_at_work() -> None:
    verbs = [
        (registered_command.name, registered_command.callback)
        for registered_command in app.registered_commands
    ]
    names = {name or getattr(function, "__name__", "") for name, function in verbs}
    shown = [one for block in blocks_of("shell") for one in commands_of(block)]
    assert names <= {one.words[1] for one in shown if one.is_ours}
