"""Reads the commands that a shell script runs, and its variables; nothing is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from meshwright.errors import SpecError
from meshwright.imports.launches.shell_text import (
    CLAUSE_END,
    MARK,
    Heredoc,
    Piece,
    ShellText,
    Word,
)
from meshwright.imports.launches.shell_values import (
    arithmetic,
    holds,
    joined,
    mark,
    unmarked,
)
from meshwright.imports.registry import MOST_OF_LAUNCH
from meshwright.imports.text import check_length, fail

_EXPR = re.compile(r"\$\([ \t]*expr[ \t]+([^()`]*)\)")
"""A sum by the program `expr`, of which each sign is a word."""


def read_script(text: str, name: str) -> Script:
    """Return the commands and variables of a script.

    Raises:
        SpecError: a quote or a parenthesis is open at the end, or the script, its
            words or the values that it makes are too many.
    """
    check_length(text, name, MOST_OF_LAUNCH)
    reader = _Reader(Script(name))
    reader.read(text.translate(dict.fromkeys(map(ord, MARK), "?")), 1)
    reader.read_spare()
    return reader.script


_WORD = re.compile(rf"(?:{MARK[0]}[^{MARK[1]}]*{MARK[1]}|\S)+")


class Argument(NamedTuple):
    """A word of a command after variables were replaced."""

    text: str
    line: int


@dataclass
class Script:
    """The commands of a script, its variables, and its undecided conditions."""

    name: str
    runs: list[list[Argument]] = field(default_factory=list)
    """The words of each command that it runs, spare ones first."""
    spare: int = 0
    """How many it does not run itself: of functions that it does not call, and of
    scripts that it writes."""
    variables: dict[str, list[Argument]] = field(default_factory=dict)
    undecided: list[int] = field(default_factory=list)
    """Lines of conditions with options behind them that were not decided."""
    files: dict[str, Argument] = field(default_factory=dict)
    """By name, the texts of files that it writes, as far as they stand in it."""
    asked: dict[str, Argument] = field(default_factory=dict)
    """What its lines of `#SBATCH` ask for, by option."""


@dataclass
class Branch:
    """An `if` or `case` that is being read."""

    line: int
    is_outer_taken: bool
    decided: list[bool | None] = field(default_factory=list)
    """Results of the tests in the condition that is being read."""
    joins: list[str] = field(default_factory=list)
    """The sign behind each test: & or |."""
    is_taken: bool = False
    is_done: bool = False
    """Whether a branch was taken, or may have been."""
    is_unknown: bool = False
    value: str | None = None
    """The word of a `case`; None where only a run knows it."""
    has_pattern_next: bool = False
    """Whether the next words are a pattern of a `case`."""

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
        fields += [Argument(word, part.line) for word in words]
    return [
        Argument(argument.text if at == 0 else argument.text.strip(), argument.line)
        for at, argument in enumerate(fields)
    ]


MOST_INNER_WORDS = 10_000
"""Most words within `$...` and within the scripts that a script runs."""

MOST_NESTING = 8
"""Most levels of scripts in strings, and of values in defaults."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_DEFAULT = re.compile(r"(:?[-=?+])(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset", "env")
_SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh")
_LEADS = ("then", "else", "do", "{", "!", "time", "exec", "nohup")
_ENDS = ("fi", "done", "}")
_RESERVED = {*_LEADS, *_ENDS, "if", "elif", "while", "until", "for", "case", "function"}
_FUNCTION = re.compile(r"[A-Za-z_][\w:.-]*", re.ASCII)
_SUBMITS = ("sbatch", "srun", "qsub", "bsub", "salloc", *_SHELLS)
"""Programs that run a script which stands in a file, or in a here-document."""

_SUBMITTED = re.compile(r"\$\([ \t]*(?:sbatch|qsub|bsub)\b[^\n]{0,300}<<")
"""A job that is submitted where its number is taken."""

_ASKED = re.compile(r"(?<!\S)(--[\w-]+(?![\w-])|-[A-Za-z])[= \t]*([^\s-]\S{0,79})?")

_BATCH_VARIABLES = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "-n": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_ON_NODE",),
    "--gres": ("SLURM_GPUS_ON_NODE",),
}
"""The variables that Slurm sets to a number of its options."""


class _Step(NamedTuple):
    """A command of a function, as it was read."""

    words: list[Word]
    heredocs: list[Heredoc]
    end: str


def _is_function(word: Word) -> bool:
    """Return whether a word may be the name of a function."""
    is_name = word.is_plain and _FUNCTION.fullmatch(word.text) is not None
    return is_name and word.text not in _RESERVED


class _Reader:
    """Reads the commands of a script one after the other."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._branches: list[Branch] = []
        self._heredocs: list[Heredoc] = []
        self._end = ""
        """The mark that ends the command that is being read."""
        self._made = 0
        self._depth = 0
        self._inner_words = 0
        self._is_guarded: bool | None = False
        """Whether the next command is not run; None where only a run decides."""
        self._functions: dict[str, list[_Step]] = {}
        self._called: set[str] = set()
        """Functions and written scripts that were run."""
        self._header = ""
        """The function whose body may come next."""
        self._body: list[_Step] | None = None
        """The commands of the function that is being read."""
        self._groups = 0
        """How many groups are open in it."""

    def read(self, text: str, line: int) -> None:
        if self._depth >= MOST_NESTING:
            fail(self.script.name, line, f"expected at most {MOST_NESTING} shells")
        self._depth += 1
        self._read_batch(text, line)
        source = ShellText(text, self.script.name, line)
        for command in source.commands():
            if self._depth > 1:
                self._count_inner(command)
            self._step(_Step(command, source.heredocs, source.end))
        body, self._body, self._header = self._body or [], None, ""
        for step in body:  # of a function whose end was not found
            self._step(step)
        self._depth -= 1

    def _read_batch(self, text: str, line: int) -> None:
        """Keep what lines of `#SBATCH` ask for, and what Slurm makes of it."""
        for at, row in enumerate(text.split("\n"), line):
            asked = row.partition(" #")[0] if row.startswith("#SBATCH") else ""
            for option, word in _ASKED.findall(asked):
                value, unset = unmarked(word)
                self.script.asked[option] = Argument(value, at)
                number = value.rpartition(":")[2]
                if number.isascii() and number.isdigit() and not unset:
                    for name in _BATCH_VARIABLES.get(option, ()):
                        self.script.variables[name] = [Argument(number, at)]

    def read_spare(self) -> None:
        """Read functions that nothing calls, and scripts that are written alone.

        What decides between functions is often known to a run only.
        """
        script = self.script
        runs, script.runs, variables = script.runs, [], {**script.variables}
        for name in [*self._functions]:
            if name not in self._called:
                self._call(name, [])
        for name in [*script.files]:
            self._read_file(name)
        script.spare, script.variables = len(script.runs), variables
        script.runs += runs

    def _step(self, step: _Step) -> None:
        if self._defines(step):
            return
        self._heredocs, self._end = step.heredocs, step.end
        self._command(step.words)
        self._is_guarded = self._guard(step.words, step.end)
        if self._branches and self._branches[-1].decided:
            self._branches[-1].joins.append(step.end)

    def _defines(self, step: _Step) -> bool:
        """Return whether a command is part of the definition of a function."""
        words, opens = step.words, 0
        while opens < len(words) and words[opens].text == "{":
            opens += 1
        if self._body is not None:
            self._groups += opens - (words[0].text == "}")
            if self._groups == 0:
                self._functions[self._header] = self._body
                self._body, self._header = None, ""
            else:
                self._body.append(step)
            return True
        is_named = step.end == "(" and len(words) == 1
        names = words[1:2] if words[0].text == "function" else words[:is_named]
        if names and not self._is_pattern and _is_function(names[0]):
            self._header = names[0].text
            rest = words[words.index(names[0]) + 1 :]
            return not rest or self._defines(step._replace(words=rest))
        if self._header and opens:
            self._body, self._groups = [], opens
            rest = words[opens:]
            self._body += [step._replace(words=rest)] if rest else []
            return True
        self._header = ""
        return False

    @property
    def _is_pattern(self) -> bool:
        return bool(self._branches) and self._branches[-1].has_pattern_next

    def _call(self, name: str, arguments: list[Argument]) -> None:
        """Read the commands of a function with its arguments."""
        self._called.add(name)
        if self._depth >= MOST_NESTING:
            return
        self._depth += 1
        before = self._give(arguments)
        for step in self._functions[name]:
            self._count_inner(step.words)
            self._step(step)
        self._take_away()
        self.script.variables |= before
        self._depth -= 1

    def _give(self, arguments: list[Argument]) -> dict[str, list[Argument]]:
        """Set the variables of arguments, and return those that were there."""
        before = self._take_away()
        self.script.variables["@"] = arguments
        for at, argument in enumerate(arguments, 1):
            self.script.variables[str(at)] = [argument]
        return before

    def _take_away(self) -> dict[str, list[Argument]]:
        variables = self.script.variables
        names = [name for name in variables if name == "@" or name.isdigit()]
        return {name: variables.pop(name) for name in names}

    def _read_file(self, name: str) -> bool:
        """Read a script that this one writes; return whether the file is one."""
        written = self.script.files.get(name.removeprefix("./"))
        if written is None or not written.text.lstrip().startswith("#!"):
            return False
        if name not in self._called and self._depth < MOST_NESTING:
            self._called.add(name)
            self.read(written.text, written.line)
        return True

    def _guard(self, command: list[Word], end: str) -> bool | None:
        """Return whether a test keeps the command behind `&&` or `||` from running."""
        if command[0].text not in ("[", "[[", "test") or end not in ("&", "|"):
            return False
        if self._branches and self._branches[-1].decided:
            return False
        result = holds([argument.text for argument in self._arguments(command)])
        return None if result is None else result == (end == "|")

    @property
    def _is_taken(self) -> bool:
        return not self._branches or self._branches[-1].is_taken

    def _command(self, words: list[Word]) -> None:
        first = words[0].text if words[0].is_plain else ""
        if self._is_pattern and first != "esac":
            self._pattern(words)
            return
        if first in ("if", "while", "until", "case"):
            self._branches.append(Branch(words[0].line, self._is_taken))
        if first == "case":
            self._case(words)
        elif first == CLAUSE_END:
            if self._branches:
                self._branches[-1].has_pattern_next = True
        elif first in ("while", "until"):
            self._branches[-1].is_taken = self._branches[-1].is_outer_taken
        elif first in ("if", "elif"):
            self._condition(words[1:], is_new=True)
        elif first in (*_ENDS, "esac"):
            if self._branches and first in ("fi", "esac"):
                self._branches.pop()
        elif first == "for":
            for word in words[1:2]:
                self.script.variables[word.text] = [
                    Argument(mark(word.text), word.line)
                ]
        elif first in ("then", "else") and self._branches:
            self._branches[-1].enter(is_else=first == "else")
            self._command_after(words)
        elif first in _LEADS:
            self._command_after(words)
        elif self._branches and self._branches[-1].decided:
            self._condition(words, is_new=False)
        else:
            self._simple(words)

    def _case(self, words: list[Word]) -> None:
        """Keep the word of a `case`, and read a pattern behind `in`."""
        branch = self._branches[-1]
        text = self._text(words[1]) if len(words) > 1 else ""
        is_known = not unmarked(text)[1] and not re.search(r"[`$]", text)
        branch.value, branch.has_pattern_next = text if is_known else None, True
        if len(words) > 3:
            self._pattern(words[3:])

    def _pattern(self, words: list[Word]) -> None:
        """Read a pattern of a `case`, and enter its commands behind the last one."""
        branch = self._branches[-1]
        pattern, value = self._text(words[0]), branch.value
        is_known = value is not None or pattern == "*"
        branch.decided.append(fnmatchcase(value or "", pattern) if is_known else None)
        branch.joins.append("|")
        if self._end == ")":
            branch.enter(is_else=False)
            branch.has_pattern_next = False

    def _command_after(self, words: list[Word]) -> None:
        if len(words) > 1:
            self._command(words[1:])

    def _condition(self, words: list[Word], *, is_new: bool) -> None:
        if not self._branches:
            return
        branch = self._branches[-1]
        if is_new:
            branch.decided, branch.joins = [], []
        test = [argument.text for argument in self._arguments(words)]
        branch.decided.append(holds(test))

    def _simple(self, words: list[Word]) -> None:
        if not self._is_taken or self._is_guarded is not False:
            self._leave_out(words)
            return
        self._keep_files(words)
        rest = list(words)
        while rest and self._assigns(rest[0]):
            rest.pop(0)
        if not rest:
            return
        first = rest[0].text
        if first in _DECLARES:
            rest = [word for word in rest[1:] if not self._assigns(word)]
            if first != "env":
                return
        self._run(self._arguments(rest))

    def _keep_files(self, words: list[Word]) -> None:
        """Keep the here-documents that a command writes or `read`s into a variable."""
        for heredoc in self._heredocs:
            target = heredoc.target
            if words[0].text == "read" and len(words) > 1:
                text = self._text(heredoc.word)
                self.script.variables[words[-1].text] = [Argument(text, heredoc.line)]
            if target is None and words[0].text == "tee" and len(words) > 1:
                target = words[-1]
            is_run = any(word.text in _SUBMITS for word in words)
            if target is not None:
                name, _ = unmarked(self._text(target))
                text = self._text(heredoc.word)
                is_script = text.lstrip().startswith("#!")
                text = text if is_script else unmarked(text)[0]
                self.script.files[name.removeprefix("./")] = Argument(
                    text, heredoc.line
                )
            elif is_run:
                self.read(self._text(heredoc.word), heredoc.line)

    def _run(self, words: list[Argument]) -> None:
        texts = [word.text for word in words]
        if not words:
            return
        if texts[0] == "eval":
            self.read(" ".join(texts[1:]), words[0].line)
            return
        if texts[0] in self._functions:
            self._call(texts[0], words[1:])
            return
        if texts[0] == "shift" and "@" in self.script.variables:
            self._give(self.script.variables["@"][1:])
            return
        if texts[0] == "sbatch":
            asked = " ".join(text for text in texts if " " not in text)
            self._read_batch(asked.replace("sbatch", "#SBATCH", 1), words[0].line)
            for text, line in words:
                if text.startswith("--wrap="):
                    self.read(text.removeprefix("--wrap="), line)
        named = texts if texts[0] in _SUBMITS else texts[:1]
        if any(self._read_file(text) for text in named):
            return
        for at in range(len(words) - 2):
            is_shell = texts[at] in _SHELLS and texts[at + 1] in ("-c", "-lc", "-ec")
            if is_shell or (texts[0] == "sbatch" and texts[at + 1] == "--wrap"):
                self.read(texts[at + 2], words[at + 2].line)
                words = words[:at]
                break
        if words:
            self.script.runs.append(words)

    def _leave_out(self, words: list[Word]) -> None:
        """Note the options of a branch that only a run takes."""
        lines = [branch.line for branch in self._branches if branch.is_unknown]
        lines += [words[0].line] if self._is_guarded is None else []
        inner = [item for word in words for item in [word, *(word.items or [])]]
        has_options = any("--" in item.text for item in inner)
        if not lines or not (has_options or self._heredocs):
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
            text = "".join(value.text for value in before) + self._text(rest)
            made = [Argument(text, before[0].line if before else word.line)]
        self.script.variables[name] = made
        return True

    def _text(self, word: Word) -> str:
        """Return the value of a word that is not split at blanks."""
        pieces = [Piece(piece.text, piece.is_live, True) for piece in word.pieces]
        return " ".join(part.text for part in self._expanded(Word(word.line, pieces)))

    def _arguments(self, words: list[Word]) -> list[Argument]:
        return [argument for word in words for argument in self._expanded(word)]

    def _expanded(self, word: Word) -> list[Argument]:
        """Return the words that one becomes."""
        fields: list[Argument] = []
        texts: list[str] = []
        line = word.line
        for piece in word.pieces:
            if not piece.is_live:
                texts.append(piece.text)
                self._count(len(piece.text), word.line)
                continue
            parts = self._value(piece.text, word.line)
            if not piece.is_quoted:
                parts = split_words(parts)
            elif "*" in piece.text and len(parts) > 1:
                joined = " ".join(part.text for part in parts)
                parts = [Argument(joined, parts[0].line)]
            for at, part in enumerate(parts):
                if at or (part.text[:1] == " " and not piece.is_quoted):
                    fields += [Argument("".join(texts), line)] if texts else []
                    texts, line = [], word.line
                line = line if any(texts) else part.line
                texts.append(part.text if piece.is_quoted else part.text.lstrip(" "))
            self._count(sum(len(part.text) + 1 for part in parts), word.line)
        is_empty = not any(texts) and all(
            piece.is_live or not piece.text for piece in word.pieces
        )
        if texts and (not is_empty or not any(piece.is_live for piece in word.pieces)):
            fields.append(Argument("".join(texts), line))
        return fields

    def _count(self, characters: int, line: int) -> None:
        """Refuse a script whose values are longer than any configuration."""
        self._made += characters
        if self._made > MOST_OF_LAUNCH:
            limit = f"expected values of at most {MOST_OF_LAUNCH:,} characters"
            fail(self.script.name, line, limit)

    def _count_inner(self, command: list[Word]) -> None:
        """Refuse a script that reads more words again than any configuration has."""
        self._inner_words += len(command)
        if self._inner_words > MOST_INNER_WORDS:
            limit = f"expected at most {MOST_INNER_WORDS:,} words within others"
            fail(self.script.name, command[0].line, limit)

    def _value(self, text: str, line: int) -> list[Argument]:
        """Return the words that `$...` stands for."""
        sum_ = text[3:-2] if text.startswith("$((") else ""
        if found := _EXPR.fullmatch(text):
            sum_ = found[1].replace("\\*", "*")
        if sum_:
            inner = self._inner(sum_, line)
            return [Argument(arithmetic(inner, self._known) or mark(text), line)]
        if text.startswith(("$(", "`")):
            if _SUBMITTED.match(text):
                self.read(text[2:-1], line)
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
            given, least = self.script.variables.get("@", []), rest[1:]
            is_part = rest[:1] == ":" and least.isascii() and least.isdigit()
            return given[int(least[:3]) - 1 :] if is_part and least != "0" else given
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
        words: list[Argument] = []
        for command in commands:
            self._count_inner(command)
            words += self._arguments(command)
        self._depth -= 1
        return " ".join(argument.text for argument in words)
