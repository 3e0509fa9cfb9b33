"""What is read of a script: its commands, its variables, and the branches it takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from meshwright.imports.settings.shell_values import MARK, joined

_WORD = re.compile(rf"(?:{MARK[0]}[^{MARK[1]}]*{MARK[1]}|\S)+")


class Argument(NamedTuple):
    """A word of a command after variables were replaced."""

    text: str
    line: int


class Run(NamedTuple):
    """A command that a script runs."""

    words: list[Argument]


@dataclass
class Script:
    """What a script runs, the variables that it sets, and what only a run decides."""

    name: str
    runs: list[Run] = field(default_factory=list)
    variables: dict[str, list[Argument]] = field(default_factory=dict)
    undecided: list[int] = field(default_factory=list)
    """Lines of conditions with options behind them that were not decided."""


@dataclass
class Branch:
    """An `if` that is being read."""

    line: int
    is_outer_taken: bool
    decided: list[bool | None] = field(default_factory=list)
    """What the tests of the condition being read come to."""
    joins: list[str] = field(default_factory=list)
    """What stands behind each of them."""
    is_taken: bool = False
    is_done: bool = False
    """Whether a branch was taken, or may have been."""
    is_unknown: bool = False

    def enter(self, *, is_else: bool) -> None:
        """Go on to the commands behind `then` or `else`."""
        decided = joined(self.decided, self.joins)
        self.decided, self.joins = [], []
        result = True if is_else else decided
        self.is_unknown |= result is None
        is_first = not self.is_done and not self.is_unknown
        self.is_taken = self.is_outer_taken and is_first and bool(result)
        self.is_done |= bool(result)


def split_words(parts: list[Argument]) -> list[Argument]:
    """Return unquoted values split at blanks; a leading blank stays as a mark."""
    fields: list[Argument] = []
    for part in parts:
        words = _WORD.findall(part.text)
        if words and part.text[:1].isspace():
            words[0] = " " + words[0]
        fields += [Argument(own, part.line) for own in words]
    return [
        Argument(own.text if at == 0 else own.text.strip(), own.line)
        for at, own in enumerate(fields)
    ]
