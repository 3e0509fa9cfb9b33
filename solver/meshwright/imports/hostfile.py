"""Slurm's host lists: `n[01-04,07],login`, with several brackets and zero padding."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.imports.registry import Importer
from meshwright.imports.text import Line, fail, known, read_lines, shown, whole

MAX_HOSTS = 200_000

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")


class HostLists:
    """The host lists of one file, with a limit on all their hosts together."""

    def __init__(self, name: str) -> None:
        """Start the count of hosts; the name of the file is for messages."""
        self.name, self._left = name, MAX_HOSTS

    def expand(self, text: str, line: int) -> tuple[str, ...]:
        """Return the hosts of a list, in order.

        Raises:
            SpecError: brackets do not close, a range is invalid, or the lists so far
                have too many hosts.
        """
        hosts: list[str] = []
        for part in _split(text):
            hosts += self._hosts(part, line) if part else []
            self._check(len(hosts), text, line)
        self._left -= len(hosts)
        return tuple(hosts)

    def _hosts(self, part: str, line: int) -> list[str]:
        pieces = _BRACKETS.split(part)
        if any(char in piece for piece in pieces[::2] for char in "[]"):
            told = "expected brackets that close, as in n[0-3]"
            fail(self.name, line, f"{shown(part)}: {told}")
        choices = [
            self._numbers(piece, line) if index % 2 else [piece]
            for index, piece in enumerate(pieces)
        ]
        self._check(math.prod(map(len, choices)), part, line)
        return ["".join(chosen) for chosen in itertools.product(*choices)]

    def _numbers(self, text: str, line: int) -> list[str]:
        numbers: list[str] = []
        for part in text.split(","):
            match = _RANGE.fullmatch(part.strip())
            low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
            if int(high) < int(low):
                told = "expected a number or a range such as 01-16"
                fail(self.name, line, f"{shown(part)}: {told}")
            self._check(int(high) - int(low) + len(numbers) + 1, text, line)
            width = len(low)
            numbers += [f"{n:0{width}d}" for n in range(int(low), int(high) + 1)]
        return numbers

    def _check(self, hosts: int, text: str, line: int) -> None:
        if hosts > self._left:
            told = f"expected at most {MAX_HOSTS:,} hosts in a file"
            fail(self.name, line, f"{shown(text)}: {told}")


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


KEYS = ("slots", "max_slots", "max-slots", "gpus", "ifhn", "user", "port")

_HOST = re.compile(r"(?:[\w.-]{1,64}@)?([A-Za-z0-9_.\-\[\],]{1,20000})(?::(\d{1,6}))?")
_IPV6 = re.compile(r"[0-9a-fA-F:]{2,39}")


@dataclass(frozen=True)
class Hostfile:
    """Hosts in the order of their first line."""

    name: str
    slots: Mapping[str, int | None]
    """Ranks on each host; None where the file does not say."""
    notes: tuple[str, ...] = ()


def parse(text: str, name: str) -> Hostfile:
    """Return hosts and slots.

    Raises:
        SpecError: no host, or a line that is not understood; with file and line.
    """
    slots: dict[str, int | None] = {}
    lines: dict[str, int] = {}
    lists = HostLists(name)
    for line in read_lines(text, name):
        words = line.text.split("#", 1)[0].split()
        if words:
            _read(words, line, lists, slots, lines)
    if not slots:
        fail(name, 0, "no host; expected one a line, such as worker-1 slots=8")
    repeated = [host for host, count in lines.items() if count > 1]
    for host in repeated:
        slots[host] = slots[host] or lines[host]
    notes = [f"{len(repeated)} hosts stand on several lines; their slots are summed."]
    return Hostfile(name, slots, tuple(notes[: len(repeated)]))


def _read(
    words: list[str],
    line: Line,
    lists: HostLists,
    slots: dict[str, int | None],
    lines: dict[str, int],
) -> None:
    match = None if _IPV6.fullmatch(words[0]) and words[0].count(":") > 1 else (
        _HOST.fullmatch(words[0])
    )  # fmt: skip
    if match is None and words[0].count(":") < 2:
        sentence = "expected a host, such as worker-1 slots=8"
        line.fail(f"{shown(words[0])}: {sentence}")
    hosts = lists.expand(match[1], line.number) if match else (words[0],)
    count = _slots(words[1:], line)
    if match and match[2] and count is None:
        count = int(match[2])
    for host in hosts:
        lines[host] = lines.get(host, 0) + 1
        known_count = slots.get(host)
        slots[host] = count if known_count is None else known_count + (count or 0)


def _slots(words: list[str], line: Line) -> int | None:
    count = None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key.lower() not in KEYS:
            line.fail(f"{shown(word)}: unknown; {known(KEYS)}")
        if key.lower() in ("slots", "gpus"):
            count = whole(value, 1_000_000)
            if count is None:
                line.fail(f"{shown(word)}: expected a whole number of slots")
    return count


IMPORTERS = {
    "hostfile": Importer(
        sign=r"(?m)^[\w.@-]{1,80}[ \t]{1,20}slots ?= ?\d",
        parse=parse,
    ),
}
