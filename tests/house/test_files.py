"""How long a file may be."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright

ROOT = Path(meshwright.__file__).parent
LONGEST = 300


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=name_of)
def test_file_is_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST, f"{name_of(path)} has {lines} lines"
