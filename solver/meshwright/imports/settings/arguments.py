"""Settings from the words of command lines, and from assignments `a.b=c` among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from meshwright.imports.settings.setting import Setting, canonical
from meshwright.imports.settings.shell import Argument
from meshwright.imports.settings.shell_values import unmarked
from meshwright.reading.document import Where

_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_DOTTED = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=(.*)", re.ASCII | re.S)


def options(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the options of a command, `--name value ...` or `--name=value`.

    An option has all the words up to the next one as its value.
    """
    found: Argument | None = None
    values: list[str] = []
    for word in [*words, Argument("--end", 0)]:
        text, equals, value = word.text.partition("=")
        if not _OPTION.fullmatch(text):
            values += [word.text]
            continue
        if found is not None:
            yield option(found, values, name)
        found, values = Argument(text, word.line), [value] if equals else []


def option(word: Argument, values: list[str], name: str) -> Setting:
    """Return an option with its values: none, one, or a list."""
    shown = [unmarked(value) for value in values]
    unset = tuple(dict.fromkeys(own for _, names in shown for own in names))
    texts = [text for text, _ in shown]
    value: Any = None if not texts else texts[0] if len(texts) == 1 else texts
    where = Where(name, word.line)
    return Setting(canonical(word.text), value, where, word.text, unset)


def assignments(words: Sequence[Argument], name: str) -> Iterator[Setting]:
    """Yield the words `a.b.c=value` of a command, as Hydra takes them."""
    for word in words:
        if found := _DOTTED.fullmatch(word.text):
            value, unset = unmarked(found[2])
            where = Where(name, word.line)
            yield Setting(canonical(found[1]), value, where, found[1], unset)
