"""Exit codes: one table, told by the help and the README, and kept."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.cli import errors as exit_codes
from tests.helpers.command import run

ROOT = Path(mw.__file__).parents[2]

CLI = sorted((Path(mw.__file__).parent / "cli").glob("*.py"))

CODES = (
    exit_codes.FOUND,
    exit_codes.NONE_FITS,
    exit_codes.BAD_INPUT,
    exit_codes.UNDECIDED,
    exit_codes.FAULT,
)


def test_codes_are_in_order_and_told() -> None:
    assert CODES == (0, 1, 2, 3, 4)
    told = re.findall(r"\b\d\b", exit_codes.IN_WORDS)
    assert told == list(map(str, CODES))


PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.stem))
def test_pages_that_tell_the_codes_tell_all(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for told in re.findall(r"[Ee]xit codes?:? 0 .*?\n\n", text, re.DOTALL):
        numbers = re.findall(r"\b[0-4](?=\s[a-z])", told)
        assert numbers == list(map(str, CODES)), told


@pytest.mark.parametrize("path", CLI, ids=lambda path: str(path.stem))
def test_commands_name_their_codes(path: Path) -> None:
    """No command leaves with a bare number."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "typer.Exit", "sys.exit", "os._exit",
        ):  # fmt: skip
            assert not any(isinstance(arg, ast.Constant) for arg in node.args), path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["solve", "gpt2-xl-2xh100-nvlink"], exit_codes.FOUND),
        (["solve", "llama3-8b-2x4090-pcie"], exit_codes.NONE_FITS),
        (["explain", "llama3-8b-2x4090-pcie"], exit_codes.NONE_FITS),
        (["explain", "gpt2-xl-2xh100-nvlink", "--plan", "tp=1"], exit_codes.FOUND),
        (["solve", "serve-llama3-8b-1xa100"], exit_codes.FOUND),
        (["explain", "serve-llama3-70b-2x4090-pcie"], exit_codes.NONE_FITS),
        (["solve", "no-such-spec"], exit_codes.BAD_INPUT),
        (["schema", "specs"], exit_codes.BAD_INPUT),
        (["solve", "llama3-70b-16xh100", "--time-limit", "0"], exit_codes.UNDECIDED),
    ],
)
def test_commands_leave_with_their_codes(words: list[str], code: int) -> None:
    assert run(*words).code == code
