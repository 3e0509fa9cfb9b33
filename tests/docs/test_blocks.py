"""Every block of README.md and docs/ is what it claims to be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.evidence.runs import read_runs
from meshwright.loading.load import load_question
from meshwright.loading.price_list import priced_machines
from meshwright.sweeps.sweep import read_search
from tests.docs.commands import check_module, commands_of, prepare, result_of
from tests.docs.pages import Block, Page, blocks_of, pages
from tests.helpers.command import Result, run

KINDS = {
    "shell": ("", "unrun"),
    "output": ("",),
    "yaml": ("spec", "topology", "sweep", "runs", "prices", "part of spec"),
    "json": ("",),
    "python": ("",),
    "text": ("", "measured"),
}

BASE = {
    "model": "llama3-8b",
    "cluster": {"machine": "dgx-h100"},
    "training": {"seq_len": 4096, "global_batch": 64},
}
"""What a part of a spec is a part of."""

pytestmark = pytest.mark.usefixtures("kept_processes")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path.name)
def test_every_block_says_what_it_is(page: Page) -> None:
    for block in page.blocks:
        if not block.kind.startswith("{"):
            assert block.about in KINDS.get(block.kind, ()), f"{block}: {block.words}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [one for one in blocks_of("shell") if not one.about], ids=str
)
def test_commands_do_what_the_page_shows(block: Block, folder: Path) -> None:
    prepare(block, folder)
    result = Result(0, "", "")
    for command in commands_of(block):
        if command.is_ours:
            result = result_of(command, folder)
            assert result.code == command.code, f"{block}: {command}: {result.stderr}"
        else:
            check_module(command)
    for below in Page(block.page).blocks:
        if below.above == block and below.kind == "output":
            _check_output(below, result)
        if below.above == block and below.kind == "json":
            _compare(json.loads(below.text), json.loads(result.stdout), str(below))


@pytest.mark.parametrize("block", [*blocks_of("output"), *blocks_of("json")], ids=str)
def test_what_is_printed_follows_its_command(block: Block) -> None:
    assert block.above is not None
    assert (block.above.kind, block.above.about) == ("shell", "")


@pytest.mark.parametrize(
    "block", [one for one in blocks_of("shell") if one.about], ids=str
)
def test_commands_that_need_machines_are_spelled_right(block: Block) -> None:
    for command in commands_of(block):
        known = run(command.words[1], "--help").stdout
        for word in command.words[2:]:
            assert not word.startswith("--") or word in known, f"{block}: {word}"


def _check_output(block: Block, result: Result) -> None:
    printed = [line.rstrip() for line in (result.stdout + result.stderr).splitlines()]
    at = 0
    for piece in _pieces(block.text):
        found = _find(piece, printed, at)
        assert found is not None, f"{block}: not printed:\n" + "\n".join(piece)
        at = found + len(piece)


def _pieces(text: str) -> Iterator[list[str]]:
    """Yield the lines between those that say that something is left out."""
    piece: list[str] = []
    for line in text.splitlines():
        if line.strip() == "...":
            yield piece
            piece = []
        else:
            piece.append(line.rstrip())
    yield piece


def _find(piece: list[str], printed: list[str], start: int) -> int | None:
    """Return where some lines stand, one after the other."""
    for at in range(start, len(printed) - len(piece) + 1):
        if all(_shows(*pair) for pair in zip(piece, printed[at:], strict=False)):
            return at
    return None


def _shows(line: str, printed: str) -> bool:
    """Return whether a line is what is printed, or the first part of it and `...`."""
    return line == printed or (
        line.endswith(" ...") and printed.startswith(line.removesuffix("..."))
    )


@pytest.mark.parametrize("block", blocks_of("yaml"), ids=str)
def test_yaml_is_read_as_what_it_is(block: Block, folder: Path) -> None:
    prepare(block, folder)
    file = folder / "block.yaml"
    if block.about == "sweep":
        file.write_text(block.text)
        assert read_search(str(file)).cases
    elif block.about == "runs":
        file.write_text(block.text)
        assert read_runs(file)
    elif block.about == "prices":
        file.write_text(block.text)
        assert priced_machines(file)
    else:
        file.write_text(_spec_of(block))
        load_question(str(file), None, [])


def _spec_of(block: Block) -> str:
    """Return a whole spec with what a block has of it."""
    if block.about == "spec":
        return block.text
    found = yaml.safe_load(block.text)
    if block.about == "topology":
        return yaml.safe_dump(BASE | {"cluster": {"topology": found, "count": 2}})
    kept = {"training"} if "inference" in found else set()
    base = {name: value for name, value in BASE.items() if name not in kept}
    return yaml.safe_dump(base | found)


def _compare(shown: Any, printed: Any, at: str) -> None:
    """Refuse keys that are not printed, and values of another type."""
    if isinstance(shown, dict):
        assert isinstance(printed, dict), at
        for key, value in shown.items():
            assert key in printed, f"{at}: {key}"
            _compare(value, printed[key], f"{at}.{key}")
    elif isinstance(shown, list):
        assert len(shown) <= len(printed), at
        for index, value in enumerate(shown):
            _compare(value, printed[index], f"{at}[{index}]")
    elif isinstance(shown, int | float) and not isinstance(shown, bool):
        assert printed == pytest.approx(shown, rel=0.05), at
    else:
        assert shown == printed, at


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [p for p in pages() if any(one.kind == "python" for one in p.blocks)],
    ids=lambda page: page.path.name,
)
def test_python_runs(page: Page, folder: Path) -> None:
    blocks = [one for one in page.blocks if one.kind == "python"]
    prepare(blocks[0], folder)
    names: dict[str, Any] = {}
    for block in blocks:
        code = "\n" * block.line + block.text
        exec(compile(code, str(block.page), "exec"), names)
