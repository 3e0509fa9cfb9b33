"""Runs the commands of a block in a folder that has what its page speaks of."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import ROOT, Block, Page
from tests.helpers.command import Result, ran, run

SHIPPED = ("benchmarks", "profiles", "specs", "tests", "topologies")
"""Folders of the checkout that pages name files in."""

INSTALLS = ("pip install ", "git clone ", "cd ", ".ci/run", "lint-imports")
"""What is not run: it would change the environment that the tests run in."""

WRITES = {"-o", "--output", "--ranks", "--export", "--plot", "--trace"}
"""Options that name a file or a folder to write."""

EXIT = re.compile(r"# exit (\d+)")


class Command(NamedTuple):
    """One command of a block."""

    words: tuple[str, ...]
    code: int
    """With which it leaves."""

    @classmethod
    def read(cls, text: str, code: int) -> Command:
        """Return the command of a line of text."""
        return cls(tuple(shlex.split(text, comments=True)), code)

    @property
    def is_ours(self) -> bool:
        """Return whether it is one that can be run here."""
        return self.words[0] == "meshwright"


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a block; those that install something are left out."""
    return list(_commands(block))


def _commands(block: Block) -> Iterator[Command]:
    for line in block.text.replace("\\\n", " ").splitlines():
        told = EXIT.search(line)
        for part in line.split("&&"):
            command = Command.read(part, int(told[1]) if told else 0)
            if command.words and not part.strip().startswith(INSTALLS):
                yield command


def check_module(command: Command) -> None:
    """Refuse what is neither `meshwright` nor a module of the checkout."""
    python, flag, module, *_ = (*command.words, "", "", "")
    assert (python, flag) == ("python", "-m"), command
    assert importlib.util.find_spec(module) is not None, command


def prepare(block: Block, folder: Path) -> None:
    """Put the files of the block's page, and of the checkout, into a folder.

    What other tools print is in `tests/data`.
    """
    for name in SHIPPED:
        (folder / name).symlink_to(ROOT / name)
    for path in (ROOT / "tests/data").iterdir():
        (folder / path.name).symlink_to(path)
    for name, text in Page(block.page).files.items():
        (folder / name).write_text(text, encoding="utf-8")


def result_of(command: Command, folder: Path) -> Result:
    """Return what a command does in a folder; the same of bundled specs runs once."""
    words = command.words[1:]
    is_pure = words[0] != "search" and not WRITES & set(words)
    if is_pure and not any((folder / word).exists() for word in words):
        return ran(*words)
    return run(*words)
