"""Slurm's host lists: `n[01-04,07],login`, with several brackets and zero padding."""

from __future__ import annotations

import itertools
import re

from meshwright.imports.text import fail, shown

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
            SpecError: see `expand`; or the lists so far have too many hosts.
        """
        hosts = expand(text, self.name, line)
        self._left -= len(hosts)
        if self._left < 0:
            fail(self.name, line, f"expected at most {MAX_HOSTS:,} hosts in a file")
        return hosts


def expand(text: str, name: str, line: int) -> tuple[str, ...]:
    """Return the hosts of a list, in order.

    Raises:
        SpecError: brackets do not close, a range is invalid, or hosts are too many.
    """
    hosts: list[str] = []
    for part in _split(text):
        if part:
            hosts += _expand_part(part, name, line)
        if len(hosts) > MAX_HOSTS:
            _refuse_many(text, name, line)
    return tuple(hosts)


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


def _expand_part(part: str, name: str, line: int) -> list[str]:
    pieces = _BRACKETS.split(part)
    if any(char in piece for piece in pieces[::2] for char in "[]"):
        fail(name, line, f"{shown(part)}: expected brackets that close, as in n[0-3]")
    choices = [
        _numbers(piece, name, line) if index % 2 else [piece]
        for index, piece in enumerate(pieces)
    ]
    total = 1
    for choice in choices:
        total *= len(choice)
        if total > MAX_HOSTS:
            _refuse_many(part, name, line)
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _numbers(text: str, name: str, line: int) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(high) < int(low):
            sentence = f"{shown(part)}: expected a number or a range such as 01-16"
            fail(name, line, sentence)
        if int(high) - int(low) + len(numbers) >= MAX_HOSTS:
            _refuse_many(text, name, line)
        width = len(low)
        numbers += [f"{n:0{width}d}" for n in range(int(low), int(high) + 1)]
    return numbers


def _refuse_many(text: str, name: str, line: int) -> None:
    fail(name, line, f"{shown(text)}: expected at most {MAX_HOSTS:,} hosts")
