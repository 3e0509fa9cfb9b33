"""Splits the text of shell scripts into commands of words, each with its line.

Nothing is run. A word is a list of pieces: text as it stands, and text in which `$`
still has to be replaced (see `shell.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwright.errors import SpecError
from meshwright.imports.text import fail

MARK = "\ue000\ue001"
"""Characters around the name of a variable that has no value; no script has them."""

MOST_WORDS = 20_000
"""Most words of a script."""

_PLAIN = re.compile(rf"(?:{MARK[0]}[^{MARK[1]}]*{MARK[1]}|[^\s'\"\\;&|<>()#$`{MARK}])+")
_BLANK = re.compile(r"(?:[ \t]|\\\r?\n)+")
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]{0,60})\1")
_REDIRECTION = re.compile(r"\d{0,2}(?:>>|>\||>&|<&|<|>)(?:&?\d{1,2}|-)?")
_IN_QUOTES = re.compile(rf"(?:{MARK[0]}[^{MARK[1]}]*{MARK[1]}|[^\"\\$`{MARK}])+")
_HEREDOC_TEXT = re.compile(rf"(?:{MARK[0]}[^{MARK[1]}]*{MARK[1]}|[^\\$`{MARK}])+")
_DOLLAR = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")


@dataclass(frozen=True)
class Piece:
    """A part of a word."""

    text: str
    is_live: bool = False
    """Whether `$` in it means a value."""
    is_quoted: bool = False


@dataclass
class Word:
    """A word of a command as it is written, or the words of an array."""

    line: int
    pieces: list[Piece] = field(default_factory=list)
    items: list[Word] | None = None
    """The words between parentheses behind `NAME=`."""

    @property
    def text(self) -> str:
        """Return the text of all pieces as it is written, without quotes."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def is_plain(self) -> bool:
        """Return whether nothing in it is quoted or a value."""
        return all(not (piece.is_live or piece.is_quoted) for piece in self.pieces)


Command = list[Word]

CLAUSE_END = ";;"
"""The end of a clause of `case`; it is yielded as a command of one word."""


@dataclass(frozen=True)
class Heredoc:
    """A text that stands in a script, and the file that it is written into."""

    target: Word | None
    text: str
    line: int
    is_live: bool
    """Whether `$` in it means a value."""

    @property
    def word(self) -> Word:
        """Return the text as one word."""
        piece = Piece(self.text, is_quoted=True)
        if not self.is_live:
            return Word(self.line, [piece])
        try:
            return ShellText(self.text, "", self.line).quoted()
        except SpecError:  # bash would fail here too
            return Word(self.line, [piece])


class ShellText:
    """A text that is being split."""

    def __init__(self, text: str, name: str, line: int = 1) -> None:
        """Start before the first character."""
        self._text, self._name = text, name
        self._at, self._line = 0, line
        self._words = 0
        self._is_array = False
        self._heredocs: list[tuple[str, bool]] = []
        self._target: Word | None = None
        self.heredocs: list[Heredoc] = []
        """The here-documents of the command that was yielded last."""
        self.end = ""
        """The mark that ended the command that was yielded last."""

    def commands(self) -> Iterator[Command]:
        """Yield the commands in order.

        Raises:
            SpecError: a quote or a parenthesis is open at the end, or there are too
                many words.
        """
        command: Command = []
        while (found := self._next()) is not None:
            if isinstance(found, Word):
                command.append(found)
            elif command:
                self.end = found
                yield command
                command = []
                self.heredocs, self._target = [], None
            if found == CLAUSE_END:
                self.end = found
                yield [Word(self._line, [Piece(CLAUSE_END)])]
        if command:
            self.end = ""
            yield command

    def _next(self) -> Word | str | None:
        """Return the next word, or the mark that ends a command; None at the end."""
        text = self._text
        while self._at < len(text):
            if blank := _BLANK.match(text, self._at):
                self._pass(blank.end())
                continue
            char = text[self._at]
            if char == "#":
                self._pass_line()
            elif char in "\n\r":
                self._pass(self._at + 1)
                self._pass_heredocs()
                return "\n"
            elif text.startswith(CLAUSE_END, self._at):
                self._pass(self._at + 2)
                return CLAUSE_END
            elif char in ";&|()":
                if text.startswith("&>", self._at):
                    self._pass(self._at + 1)
                    continue
                self._pass(self._at + 1)
                return char
            elif not self._passes_redirection():
                return self._word()
        return None

    def _pass(self, end: int) -> None:
        self._line += self._text.count("\n", self._at, end)
        self._at = end

    def _pass_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _pass_heredocs(self) -> None:
        """Pass the bodies of the here-documents that the last line has begun."""
        for mark, is_live in self._heredocs:
            body = re.compile(rf"^[\t]*{mark}[ \t\r]*$", re.MULTILINE)
            found = body.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            text = self._text[self._at : end]
            self.heredocs.append(Heredoc(self._target, text, self._line, is_live))
            self._pass(found.end() if found else end)
        self._heredocs = []

    def _passes_redirection(self) -> bool:
        """Return whether a redirection stood here, which is passed with its file."""
        if found := _HEREDOC.match(self._text, self._at):
            self._heredocs.append((found[2], not found[1]))
            self._pass(found.end())
            return True
        found = _REDIRECTION.match(self._text, self._at)
        if found is None:
            return False
        self._pass(found.end())
        if not found[0][-1].isdigit() and found[0][-1] != "-":
            if blank := _BLANK.match(self._text, self._at):
                self._pass(blank.end())
            if self._at < len(self._text) and self._text[self._at] not in "\n;&|()<>#":
                self._target = self._word()
        return True

    def _word(self) -> Word:
        word = Word(self._line)
        self._words += 1
        if self._words > MOST_WORDS:
            fail(self._name, self._line, f"expected at most {MOST_WORDS:,} words")
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if plain := _PLAIN.match(text, self._at):
                word.pieces.append(Piece(plain[0]))
                self._pass(plain.end())
            elif char == "#" and word.pieces:
                word.pieces.append(Piece("#"))
                self._at += 1
            elif char == "\\":
                self._escape(word)
            elif char in "'\"":
                self._quoted(word, char)
            elif char in "$`":
                self._value(word, is_quoted=False)
            elif char == "(" and word.is_plain and word.text.endswith("="):
                word.items = self._array()
                break
            else:
                break
        return word

    def _escape(self, word: Word) -> None:
        end = self._at + 2
        if self._text[self._at : end] == "\\\r":
            end += 1
        inner = self._text[self._at + 1 : end]
        if not inner.startswith(("\n", "\r")):
            word.pieces.append(Piece(inner, is_quoted=True))
        self._pass(min(end, len(self._text)))

    def quoted(self) -> Word:
        """Return the whole text as a word, in which quotes mean nothing."""
        word = Word(self._line)
        self._take(word, _HEREDOC_TEXT, "")
        return word

    def _take(self, word: Word, plain: re.Pattern[str], closing: str) -> bool:
        """Take text in which some characters mean nothing; return whether it closes."""
        text = self._text
        while self._at < len(text):
            if text[self._at] == closing:
                self._at += 1
                return True
            if found := plain.match(text, self._at):
                word.pieces.append(Piece(found[0], is_quoted=True))
                self._pass(found.end())
            elif text[self._at] == "\\":
                self._escaped_in_quotes(word)
            else:
                self._value(word, is_quoted=True)
        return False

    def _escaped_in_quotes(self, word: Word) -> None:
        inner = self._text[self._at + 1 : self._at + 2]
        kept = "" if inner in "\n\r" else inner
        kept = kept if inner in '"\\$`\n\r' else "\\" + inner
        word.pieces.append(Piece(kept, is_quoted=True))
        self._pass(min(self._at + 2, len(self._text)))

    def _quoted(self, word: Word, mark: str) -> None:
        start, text = self._line, self._text
        self._at += 1
        if mark == "'":
            end = text.find("'", self._at)
            if end < 0:
                fail(self._name, start, "a quote ' that is not closed")
            word.pieces.append(Piece(text[self._at : end], is_quoted=True))
            self._pass(end + 1)
            return
        word.pieces.append(Piece("", is_quoted=True))
        if not self._take(word, _IN_QUOTES, '"'):
            fail(self._name, start, 'a quote " that is not closed')

    def _value(self, word: Word, *, is_quoted: bool) -> None:
        """Take `$NAME`, `${NAME...}`, `$(...)`, `$((...))` or a backquoted command."""
        text, start, line = self._text, self._at, self._line
        if text[start] == "`":
            end = text.find("`", start + 1) + 1
        elif text.startswith("${", start):
            end = self._closing(start + 1, "{", "}")
        elif text.startswith("$(", start):
            end = self._closing(start + 1, "(", ")")
        elif text.startswith("$'", start) and not is_quoted:
            self._at += 1
            self._quoted(word, "'")
            return
        elif found := _DOLLAR.match(text, start):
            end = found.end()
        else:
            word.pieces.append(Piece("$", is_quoted=True))
            self._at += 1
            return
        if end <= 0:
            fail(self._name, line, f"{text[start : start + 2]} that is not closed")
        word.pieces.append(Piece(text[start:end], is_live=True, is_quoted=is_quoted))
        self._pass(end)

    def _closing(self, start: int, opened: str, closed: str) -> int:
        """Return the place behind the mark that closes one, 0 where none does."""
        depth = 0
        for found in re.compile(rf"[{opened}{closed}]").finditer(self._text, start):
            depth += 1 if found[0] == opened else -1
            if depth == 0:
                return found.end()
        return 0

    def _array(self) -> list[Word]:
        line = self._line
        if self._is_array:
            fail(self._name, line, "an array inside an array")
        self._is_array = True
        self._pass(self._at + 1)
        items: list[Word] = []
        while (found := self._next()) != ")":
            if found is None:
                fail(self._name, line, "( that is not closed")
            if isinstance(found, Word):
                items.append(found)
        self._is_array = False
        return items
