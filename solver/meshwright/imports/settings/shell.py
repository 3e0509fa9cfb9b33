"""Reads shell scripts without running them: variables, arrays, and the commands.

Variables that the script sets are replaced by their values. One that it does not set
stays a mark in the words that use it, unless the script gives a default. A command in
`$(...)` has no value here. Of an `if`, the branch is taken that plain tests on known
values decide; where only a run decides, no branch is.
"""

from __future__ import annotations

import re

from meshwright.errors import SpecError
from meshwright.imports.settings.setting import MOST_CHARACTERS, check_characters
from meshwright.imports.settings.shell_script import (
    Argument,
    Branch,
    Run,
    Script,
    split_words,
)
from meshwright.imports.settings.shell_text import Piece, ShellText, Word
from meshwright.imports.settings.shell_values import (
    MARK,
    arithmetic,
    holds,
    mark,
)
from meshwright.imports.text import fail

MOST_NESTING = 8
"""Most levels of scripts in strings, and of values in defaults."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_DEFAULT = re.compile(r"(:?[-=?+])(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset", "env")
_SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh")
_LEADS = ("then", "else", "do", "{", "!", "time", "exec", "nohup")
_ENDS = ("fi", "done", "}")


def read_script(text: str, name: str) -> Script:
    """Return what a script runs.

    Raises:
        SpecError: a quote or a parenthesis is open at the end, or the script, its
            words or the values that it makes are too many.
    """
    check_characters(text, name)
    reader = _Reader(Script(name))
    reader.read(text.translate(dict.fromkeys(map(ord, MARK), "?")), 1)
    return reader.script


class _Reader:
    """Reads the commands of a script one after the other."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._branches: list[Branch] = []
        self._made = 0
        self._depth = 0
        self._is_guarded: bool | None = False
        """Whether the next command is not run; None where only a run decides."""

    def read(self, text: str, line: int) -> None:
        if self._depth >= MOST_NESTING:
            fail(self.script.name, line, f"expected at most {MOST_NESTING} shells")
        self._depth += 1
        source = ShellText(text, self.script.name, line)
        for command in source.commands():
            self._command(command)
            self._is_guarded = self._guard(command, source.end)
            if self._branches and self._branches[-1].decided:
                self._branches[-1].joins.append(source.end)
        self._depth -= 1

    def _guard(self, command: list[Word], end: str) -> bool | None:
        """Return whether a test keeps the command behind `&&` or `||` from running."""
        if command[0].text not in ("[", "[[", "test") or end not in ("&", "|"):
            return False
        if self._branches and self._branches[-1].decided:
            return False
        result = holds([own.text for own in self._arguments(command)])
        return None if result is None else result == (end == "|")

    @property
    def _is_taken(self) -> bool:
        return not self._branches or self._branches[-1].is_taken

    def _command(self, words: list[Word]) -> None:
        first = words[0].text if words[0].is_plain else ""
        if first in ("if", "while", "until", "case"):
            self._branches.append(Branch(words[0].line, self._is_taken))
        if first in ("while", "until", "case"):
            branch = self._branches[-1]
            branch.is_unknown = first == "case"
            branch.is_taken = branch.is_outer_taken and first != "case"
        elif first in ("if", "elif"):
            self._condition(words[1:], is_new=True)
        elif first in (*_ENDS, "esac"):
            if self._branches and first in ("fi", "esac"):
                self._branches.pop()
        elif first == "for":
            for own in words[1:2]:
                self.script.variables[own.text] = [Argument(mark(own.text), own.line)]
        elif first in ("then", "else") and self._branches:
            self._branches[-1].enter(is_else=first == "else")
            self._command_after(words)
        elif first in _LEADS:
            self._command_after(words)
        elif self._branches and self._branches[-1].decided:
            self._condition(words, is_new=False)
        else:
            self._simple(words)

    def _command_after(self, words: list[Word]) -> None:
        if len(words) > 1:
            self._command(words[1:])

    def _condition(self, words: list[Word], *, is_new: bool) -> None:
        branch = self._branches[-1] if self._branches else None
        if branch is None:
            return
        if is_new:
            branch.decided, branch.joins = [], []
        test = [own.text for own in self._arguments(words)]
        branch.decided.append(holds(test))

    def _simple(self, words: list[Word]) -> None:
        if not self._is_taken or self._is_guarded is not False:
            self._leave_out(words)
            return
        rest = list(words)
        while rest and self._assigns(rest[0]):
            rest.pop(0)
        if not rest:
            return
        first = rest[0].text
        if first in _DECLARES:
            rest = [own for own in rest[1:] if not self._assigns(own)]
            if first != "env":
                return
        self._run(self._arguments(rest))

    def _run(self, words: list[Argument]) -> None:
        texts = [own.text for own in words]
        if not words:
            return
        if texts[0] == "eval":
            self.read(" ".join(texts[1:]), words[0].line)
            return
        for at in range(len(words) - 2):
            is_shell = texts[at] in _SHELLS and texts[at + 1] in ("-c", "-lc", "-ec")
            if is_shell:
                self.read(texts[at + 2], words[at + 2].line)
                words = words[:at]
                break
        self.script.runs.append(Run(words))

    def _leave_out(self, words: list[Word]) -> None:
        """Note the options of a branch that only a run takes."""
        lines = [own.line for own in self._branches if own.is_unknown]
        lines += [words[0].line] if self._is_guarded is None else []
        inner = [item for own in words for item in [own, *(own.items or [])]]
        if not lines or not any("--" in own.text for own in inner):
            return
        line = lines[0]
        if line not in self.script.undecided:
            self.script.undecided.append(line)

    def _assigns(self, word: Word) -> bool:
        """Return whether a word is an assignment, which is then done."""
        head = word.pieces[0] if word.pieces else Piece("")
        found = _ASSIGNMENT.match(head.text)
        if found is None or head.is_live or head.is_quoted:
            return False
        name, more = found[1], bool(found[2])
        before = self.script.variables.get(name, []) if more else []
        if word.items is not None:
            made = [*before, *self._arguments(word.items)]
        else:
            rest = Word(word.line, [Piece(found[3]), *word.pieces[1:]])
            text = "".join(own.text for own in before) + self._text(rest)
            made = [Argument(text, before[0].line if before else word.line)]
        self.script.variables[name] = made
        return True

    def _text(self, word: Word) -> str:
        """Return the value of a word that is not split at blanks."""
        pieces = [Piece(own.text, own.is_live, True) for own in word.pieces]
        return " ".join(own.text for own in self._expanded(Word(word.line, pieces)))

    def _arguments(self, words: list[Word]) -> list[Argument]:
        return [own for word in words for own in self._expanded(word)]

    def _expanded(self, word: Word) -> list[Argument]:
        """Return the words that one becomes."""
        fields: list[Argument] = []
        text, line, is_open = "", word.line, False
        for piece in word.pieces:
            if not piece.is_live:
                text, is_open = text + piece.text, True
                continue
            parts = self._value(piece.text, word.line)
            if not piece.is_quoted:
                parts = split_words(parts)
            elif "*" in piece.text and len(parts) > 1:
                joined = " ".join(own.text for own in parts)
                parts = [Argument(joined, parts[0].line)]
            for at, part in enumerate(parts):
                if at or (part.text[:1] == " " and not piece.is_quoted):
                    fields += [Argument(text, line)] if is_open else []
                    text, line, is_open = "", word.line, False
                line = line if text else part.line
                added = part.text if piece.is_quoted else part.text.lstrip(" ")
                text, is_open = text + added, True
        is_empty = not text and all(own.is_live or not own.text for own in word.pieces)
        if is_open and (not is_empty or not any(own.is_live for own in word.pieces)):
            fields.append(Argument(text, line))
        self._made += sum(len(own.text) + 1 for own in fields)
        if self._made > MOST_CHARACTERS:
            limit = f"expected values of at most {MOST_CHARACTERS:,} characters"
            fail(self.script.name, word.line, limit)
        return fields

    def _value(self, text: str, line: int) -> list[Argument]:
        """Return the words that `$...` stands for."""
        if text.startswith("$(("):
            inner = self._inner(text[3:-2], line)
            return [Argument(arithmetic(inner, self._known) or mark(text), line)]
        if text.startswith(("$(", "`")):
            return [Argument(mark(text), line)]
        name = text[2:-1] if text.startswith("${") else text[1:]
        return self._variable(name, line)

    def _known(self, name: str) -> str | None:
        values = self.script.variables.get(name)
        return values[0].text if values else None

    def _variable(self, inner: str, line: int) -> list[Argument]:
        found = _NAME.match(inner)
        name = found[0] if found else ""
        rest = inner[len(name) :]
        is_list = rest.startswith(("[@]", "[*]")) or name in "@*"
        rest = rest[3:] if rest.startswith(("[@]", "[*]")) else rest
        values = self.script.variables.get(name)
        if name in ("@", "*"):
            return []
        default = _DEFAULT.fullmatch(rest)
        if rest and default is None:
            return [Argument(mark(inner), line)]
        kind = default[1] if default else ""
        if kind.endswith("+"):
            values = [] if not values else None
        if values is not None:
            return values if is_list else values[:1]
        if default and not kind.endswith("?"):
            return [Argument(self._inner(default[2], line), line)]
        return [] if is_list else [Argument(mark(name), line)]

    def _inner(self, text: str, line: int) -> str:
        """Return the value of the text of a default, in which `$` means a value."""
        if "$" not in text and '"' not in text and "'" not in text:
            return text
        self._depth += 1
        if self._depth > MOST_NESTING:
            fail(self.script.name, line, f"expected at most {MOST_NESTING} levels of $")
        try:
            commands = [*ShellText(text, self.script.name, line).commands()]
        except SpecError:
            commands = []
        words = [own for command in commands for own in self._arguments(command)]
        self._depth -= 1
        return " ".join(own.text for own in words)
