"""A setting: an option, a key or a variable of a configuration, its value and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.text import number_in, whole
from meshwright.reading.document import Document, FieldPath, Where, dotted
from meshwright.reading.yaml_and_csv import table_beside

AUTO = "auto"
"""The value by which DeepSpeed leaves a number to the program that calls it."""

MOST_COUNT = 10**15
"""Largest whole number of any setting."""

OPTIONS: Mapping[str, Any] = table_beside(__file__, "options.yaml")
"""Options of programs, by program and purpose: see the head of the file."""

LONGEST_SHOWN = 60
"""Most characters of a value in a message."""

NEAR = 0.92
"""Similarity from which a name looks like another one that is misspelt."""

_YES = {"true": True, "1": True, "yes": True, "on": True, "": True}
_NO = {"false": False, "0": False, "no": False, "off": False, "none": False}

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """One setting as a file has it."""

    name: str
    """Its name in lower case, with `_` for `-`, and without leading dashes."""
    value: Any
    """Text, number, flag, list or mapping; None for an option without a value."""
    where: Where
    written: str
    """Its name as the file has it."""
    unset: tuple[str, ...] = ()
    """Variables in the value that the file does not set."""

    def __str__(self) -> str:
        """Return the setting as the file has it, shortened."""
        if self.value is None:
            return self.written if self.is_bare else f"{self.written}: nothing"
        sign = " " if self.written.startswith("-") else ": "
        return f"{self.written}{sign}{self.shown}"

    @property
    def is_bare(self) -> bool:
        """Return whether it is an option without a value, which switches one on."""
        return self.value is None and self.written.startswith("-")

    @property
    def shown(self) -> str:
        """Return the value as the file has it, shortened."""
        value = self.value
        text = str(value).lower() if isinstance(value, bool) else str(value)
        short = text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."
        return printable(short)

    def refuse(self, expected: str) -> NoReturn:
        """Raise the error that names file, line, option, value and what is accepted."""
        raise SpecError(f"{self.where}: {printable(str(self))}: {expected}")


def canonical(written: str) -> str:
    """Return the name of a setting from how a file writes it; `-N` is not `-n`.

    Keys of `fsdp_config` have `fsdp_` before them or not.
    """
    if len(written) == 2 and written[0] == "-":
        return written[1]
    name = written.lstrip("-").lower().replace("-", "_")
    return re.sub(r"^fsdp_config\.fsdp_", "fsdp_config.", name)


class Settings:
    """The settings of a configuration by name; remembers which of them were read.

    Of a setting that is given twice the last one counts, as programs have it.
    """

    def __init__(self, settings: Iterable[Setting]) -> None:
        """Keep the settings by name."""
        self._by_name: dict[str, Setting] = {}
        self.repeated: dict[str, Setting] = {}
        """By name the last setting that a later one of another value replaces."""
        self.open: list[Setting] = []
        """Settings whose value is not in the file."""
        self._read: set[str] = set()
        self._asked: set[str] = set()
        self._skipped: set[str] = set()
        self.add(settings)

    def add(self, settings: Iterable[Setting]) -> None:
        """Keep more settings, which count in the place of those before them."""
        for setting in settings:
            before = self._by_name.get(setting.name)
            if before is not None and before.value != setting.value:
                self.repeated[setting.name] = before
            self._by_name[setting.name] = setting

    def assume(self, defaults: Mapping[str, Any], file: str) -> None:
        """Keep what a program sets where its options do not; fp16 keeps bf16 away."""
        for name, value in defaults.items():
            if name not in self and not (name == "bf16" and "fp16" in self):
                written = f"--{name.replace('_', '-')}"
                self.add([Setting(name, value, Where(file), written)])

    def leave_out(self, *values: str) -> None:
        """Leave out the settings that have one of some words as their values."""
        for name, setting in [*self._by_name.items()]:
            if str(setting.value) in values:
                del self._by_name[name]

    def __iter__(self) -> Iterator[Setting]:
        """Yield the settings, the last of each name."""
        return iter([*self._by_name.values()])

    def __contains__(self, name: str) -> bool:
        """Return whether there is a setting of a name."""
        return name in self._by_name

    def starting_with(self, beginnings: Iterable[str]) -> list[str]:
        """Return the names of the settings that begin with one of some words."""
        return [name for name in self._by_name if name.startswith((*beginnings,))]

    @property
    def has_auto(self) -> bool:
        """Return whether a value is left to the program that reads the file."""
        return any(map(self.is_auto, self._by_name))

    def is_auto(self, name: str) -> bool:
        """Return whether the value of a setting is left to that program."""
        return name in self and self._by_name[name].value == AUTO

    def get(self, *names: str) -> Setting | None:
        """Return the setting of the first of some names that has a value in the file.

        A list of one value, as arguments have it, is that value.
        """
        found = None
        self._asked.update(names)
        for name in names:
            setting = self._by_name.get(name)
            if setting is None:
                continue
            is_new = name not in self._read
            self._read.add(name)
            if setting.unset or setting.value == AUTO:
                self.open += [setting] if is_new else []
            elif found is None:
                found = setting
        return found

    def file(self, *names: str) -> Setting | None:
        """Return the setting that names a file, also where part of it is not set."""
        found = [self._by_name[name] for name in names if name in self._by_name]
        files = [setting for setting in found if setting.value]
        self._read.update(setting.name for setting in files)
        return next(iter(files), None)

    def count(self, *names: str, least: int = 1) -> tuple[int, Setting] | None:
        """Return a whole number, and the setting that has it; None without."""
        setting = self.get(*names)
        if setting is None or (setting.value is None and not setting.is_bare):
            return None
        number = _whole_number(setting.value)
        if number is None or number < least:
            setting.refuse(f"expected a whole number, {least} or more")
        return number, setting

    def flag(self, *names: str) -> tuple[bool, Setting] | None:
        """Return whether a switch is on, and the setting that says so; None without."""
        setting = self.get(*names)
        if setting is None:
            return None
        if setting.value is None:
            return setting.is_bare, setting
        word = str(setting.value).lower()
        if word not in _YES | _NO:
            setting.refuse("expected true or false")
        return (_YES | _NO)[word], setting

    def is_on(self, *names: str) -> Setting | None:
        """Return the setting that switches something on; None without."""
        found = self.flag(*names)
        return found[1] if found and found[0] else None

    def word(self, choices: Mapping[str, T], *names: str) -> tuple[T, Setting] | None:
        """Return the meaning of a word among a few; None without a word."""
        setting = self.get(*names)
        if setting is None or setting.value is None:
            return None
        meanings = {choice.lower(): meaning for choice, meaning in choices.items()}
        word = str(setting.value).lower()
        if word not in meanings:
            setting.refuse(f"accepted: {', '.join(choices)}")
        return meanings[word], setting

    def number(self, *names: str) -> tuple[float, Setting] | None:
        """Return a number, and the setting that has it; None without."""
        setting = self.get(*names)
        if setting is None or setting.value is None:
            return None
        return number_of(setting), setting

    def read(self, row: Mapping[str, Any]) -> tuple[Any, Setting] | None:
        """Return what a row of `options.yaml` reads, and its setting; None without."""
        how, names = how_and_names(row)
        if how == "count":
            return self.count(*names, least=row.get("least", 1))
        if how == "number":
            return self.number(*names)
        if how == "word":
            return self.word(row["words"], *names)
        found = self.flag(*names)
        if found is None or not (found[0] or how == "flag"):
            return None
        is_on = found[0] and how != "false_if"
        return row["words"][is_on] if "words" in row else is_on, found[1]

    def skip(self, *names: str) -> None:
        """Count settings as known, whatever their values."""
        self._skipped.update(names)

    def skip_sections(self, beginnings: Iterable[str]) -> None:
        """Count settings whose names begin with one of some words as known."""
        self.skip(*self.starting_with(beginnings))

    def unread(self) -> Iterator[Setting]:
        """Yield the settings that were not read."""
        for name, setting in self._by_name.items():
            if name not in self._read and name not in self._skipped:
                yield setting

    def near(self, setting: Setting) -> str:
        """Return the name that a setting may be meant to have; empty without one."""
        free = [*self._asked - self._by_name.keys()]
        return next(iter(get_close_matches(setting.name, free, n=1, cutoff=NEAR)), "")

    def skipped(self) -> Iterator[Setting]:
        """Yield the settings that count as known, and that nobody read."""
        for name, setting in self._by_name.items():
            if name in self._skipped and name not in self._read:
                yield setting


def how_and_names(row: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return how a row of `options.yaml` reads, and the names of its option."""
    how, told = next(iter(row.items()))
    return how, (told,) if isinstance(told, str) else (*told,)


def inverse(words: Mapping[str, Any]) -> dict[Any, str]:
    """Return words by what they mean, the first of several, as files are written."""
    found: dict[Any, str] = {}
    for word, meaning in words.items():
        found.setdefault(meaning, word)
    return found


def _whole_number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        is_whole = value.is_integer() and abs(value) <= MOST_COUNT
        return int(value) if is_whole else None
    if isinstance(value, int):
        return value if abs(value) <= MOST_COUNT else None
    text = str(value).strip().replace("_", "")
    if text.startswith("-"):
        below = whole(text[1:])
        return None if below is None else -below
    return whole(text)


def number_of(setting: Setting) -> float:
    """Return the number that a setting has."""
    value = number_in(setting.value)
    if isinstance(setting.value, bool) or not abs(value) <= MOST_COUNT:
        setting.refuse("expected a number")
    return value


_VARIABLE = re.compile(r"\$\{([^}\n]{1,80})\}")
"""A variable of the script that writes the file, which it does not set."""


def fields(document: Document, path: FieldPath = ()) -> Iterator[Setting]:
    """Yield the fields of a document that are no mappings, with dotted names."""
    value: Any = document.value(path)
    if isinstance(value, dict) and value:
        for key in value:
            yield from fields(document, (*path, key))
        return
    name = dotted(path)
    unset = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    names = (unset[1],) if unset else ()
    yield Setting(canonical(name), value, document.where(path), name, names)


def words_of(setting: Setting) -> list[str]:
    """Return the words of a list, or of a text such as `[a, b]` or `a,b`."""
    value = setting.value
    words = value if isinstance(value, list) else str(value).strip("[]").split(",")
    return [str(word).strip(" '\"") for word in words]
