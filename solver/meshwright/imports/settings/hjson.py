"""Reads Hjson, of which JSON is a part, with the line of every value.

DeepSpeed reads its configuration as Hjson: keys and text need no quotes, a new line
does for a comma, and there are comments.
"""

from __future__ import annotations

import json
import re
from typing import Any

from meshwright.errors import SpecError
from meshwright.reading.document import Document, FieldPath, Where
from meshwright.reading.guard import SPECS, check_size

_BLANK = re.compile(r"(?:[\s,]|#[^\n]*|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_KEY = re.compile(r"[^\s\"',:\[\]{}]+")
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'")
_LONG = re.compile(r"'''(.*?)'''", re.DOTALL)
_BARE = re.compile(r"[^\n]*")
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?")
_WORDS = {"true": True, "false": False, "null": None}
_TAIL = re.compile(r"[ \t]*(?:$|[,\]}#\n]|//|/\*)", re.MULTILINE)


def parse_hjson(text: str, name: str) -> Document:
    """Return the fields of a text; `name` stands for it in messages.

    Raises:
        SpecError: the text is no Hjson, is too long, or nests too deep.
    """
    return _Reader(text, name).document()


class _Reader:
    """Reads values from the start of a text to its end."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name
        self._at, self._line, self._counted = 0, 1, 0
        self._values = 0
        self._document = Document({})

    def document(self) -> Document:
        self._skip()
        if not self._text.startswith("{", self._at):
            self._fail("expected { with fields")
        self._document.data = self._value((), 0)
        self._skip()
        if self._at < len(self._text):
            self._fail("expected nothing behind the last }")
        return self._document

    @property
    def _here(self) -> Where:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return Where(self._name, self._line)

    def _fail(self, sentence: str) -> None:
        raise SpecError(f"{self._here}: not valid JSON: {sentence}")

    def _skip(self) -> None:
        if blank := _BLANK.match(self._text, self._at):
            self._at = blank.end()

    def _value(self, path: FieldPath, depth: int) -> Any:
        self._values += 1
        here = self._here
        check_size(self._values, depth, here, SPECS)
        self._document.places.setdefault(path, here)
        text = self._text
        if text.startswith("{", self._at):
            return self._mapping(path, depth)
        if text.startswith("[", self._at):
            return self._list(path, depth)
        if long := _LONG.match(text, self._at):
            self._at = long.end()
            return long[1]
        if quoted := _QUOTED.match(text, self._at):
            self._at = quoted.end()
            return self._unquoted(quoted[0])
        return self._bare()

    def _mapping(self, path: FieldPath, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self._at += 1
        while True:
            self._skip()
            if self._text.startswith("}", self._at):
                self._at += 1
                return result
            key, here = self._key(), self._here
            if key in result:
                first = self._document.places[(*path, key)]
                self._fail(f"{key[:60]}: already given at {first}")
            self._document.places[(*path, key)] = here
            result[key] = self._value((*path, key), depth + 1)

    def _key(self) -> str:
        quoted = _QUOTED.match(self._text, self._at)
        found = quoted or _KEY.match(self._text, self._at)
        if found is None:
            self._fail("expected a key, or }")
        assert found is not None
        self._at = found.end()
        self._skip()
        if not self._text.startswith(":", self._at):
            self._fail(f"expected : behind the key {found[0][:60]}")
        self._at += 1
        self._skip()
        return self._unquoted(found[0]) if quoted else found[0]

    def _list(self, path: FieldPath, depth: int) -> list[Any]:
        result: list[Any] = []
        self._at += 1
        while True:
            self._skip()
            if self._text.startswith("]", self._at):
                self._at += 1
                return result
            if self._at >= len(self._text):
                self._fail("expected ]")
            result.append(self._value((*path, len(result)), depth + 1))

    def _unquoted(self, quoted: str) -> str:
        try:
            return str(json.loads('"' + quoted[1:-1].replace("\\'", "'") + '"'))
        except ValueError:
            return quoted[1:-1]

    def _bare(self) -> Any:
        """Return a number, true, false, null, or text up to the end of the line."""
        for word, value in _WORDS.items():
            if self._is_word(word):
                self._at += len(word)
                return value
        number = _NUMBER.match(self._text, self._at)
        if number and _TAIL.match(self._text, number.end()):
            self._at = number.end()
            return _number(number[0])
        found = _BARE.match(self._text, self._at)
        text = found[0].strip() if found else ""
        if not text or text[0] in ",:]}":
            self._fail("expected a value")
        assert found is not None
        self._at = found.end()
        return text

    def _is_word(self, word: str) -> bool:
        end = self._at + len(word)
        is_next = self._text.startswith(word, self._at)
        return is_next and _TAIL.match(self._text, end) is not None


def _number(text: str) -> int | float | str:
    if text.lstrip("-").isdigit():
        return int(text)
    value = float(text)
    return value if abs(value) < float("inf") else text
