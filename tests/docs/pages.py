"""The blocks of README.md and docs/: what each claims to be, and where it stands.

The words after the three backticks say what a block is:

- `shell`: commands, a line each. They are run in a folder that has the page's files,
  and leave with 0, or with N where the line ends on `# exit N`. `shell unrun` is for
  what needs machines that nobody has here: its options must exist.
- `output`: what the commands of the block above print, where `...` stands for what is
  left out.
- `yaml spec`, `yaml topology`, `yaml sweep`, `yaml runs`: such a file, in whole;
  `yaml part of spec`: some sections of one. A name after that is the file's.
- `json`: what the command above prints, where some keys are left out.
- `python`: run after those before it on its page.
- `text measured`: the output of a benchmark, which takes too long to be run.
- `text`: a drawing or a formula.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

FENCE = re.compile(r"^( *)(`{3,})(.*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    """Of its first fence."""
    words: tuple[str, ...]
    """What stands behind that."""
    text: str
    above: Block | None
    """The block before it on its page."""

    @property
    def kind(self) -> str:
        """Return the first word: the language."""
        return self.words[0] if self.words else ""

    @property
    def file(self) -> str | None:
        """Return the file's name, if the block has one."""
        last = self.words[-1] if self.words else ""
        return last if "." in last else None

    @property
    def about(self) -> str:
        """Return the words between the language and a name."""
        words = self.words[1:-1] if self.file else self.words[1:]
        return " ".join(words)

    def __str__(self) -> str:
        """Return where it stands."""
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


@dataclass(frozen=True)
class Page:
    """One page with its blocks."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Return the page as it is written."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Return the blocks in order."""
        return tuple(_blocks(self.path, self.text))

    @property
    def files(self) -> dict[str, str]:
        """Return the text of the blocks that are files, by name."""
        return {block.file: block.text for block in self.blocks if block.file}


def pages() -> list[Page]:
    """Return all pages."""
    return [Page(path) for path in PAGES]


def blocks_of(kind: str) -> list[Block]:
    """Return the blocks of a language on all pages."""
    return [block for page in pages() for block in page.blocks if block.kind == kind]


def _blocks(path: Path, text: str) -> Iterator[Block]:
    above, start, fence, indent = None, 0, "", ""
    words: tuple[str, ...] = ()
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        if not fence and found:
            indent, fence, told = found.groups()
            start, words, lines = number, tuple(told.split()), []
        elif fence and found and found[2] == fence and not found[3]:
            block = Block(path, start, words, "\n".join(lines) + "\n", above)
            yield block
            above, fence = block, ""
        elif fence:
            lines.append(line.removeprefix(indent))
    assert not fence, f"{path.name}:{start}: the block has no end"
