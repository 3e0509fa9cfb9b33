"""Reasons for changes that no test sees are of changes that there are."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.changes import changes
from tests.mutants.survivors import FROZEN, REASONS, key, reason

CODE = Path(__file__).parents[2] / "solver" / "meshwright"


def test_every_reason_is_of_a_change_of_its_line() -> None:
    found = set[tuple[str, str, str]]()
    for path in {path for path, _, _ in REASONS}:
        source = (CODE / path).read_text(encoding="utf-8")
        for change in changes(path, source):
            if reason(change, source):
                found.add(key(change, source))
    assert {named for named in found if named[1] != FROZEN} == REASONS.keys()
