"""Host files of DeepSpeed, MPI, pdsh and Slurm: one host a line, with or without slots.

worker-1 slots=8          DeepSpeed, Open MPI (also max_slots=)
worker-1:8                MPICH
worker-[1-4]              a host list
worker-1                  as often as there are ranks on it, or once
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.imports.importer import FactsImporter
from meshwright.imports.slurm.hostlist import HostLists
from meshwright.imports.text import Line, fail, known, read_lines, shown, whole

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
        fail(lists.name, line.number, f"{shown(words[0])}: {sentence}")
    hosts = lists.expand(match[1], line.number) if match else (words[0],)
    count = _slots(words[1:], line, lists.name)
    if match and match[2] and count is None:
        count = int(match[2])
    for host in hosts:
        lines[host] = lines.get(host, 0) + 1
        known_count = slots.get(host)
        slots[host] = count if known_count is None else known_count + (count or 0)


def _slots(words: list[str], line: Line, name: str) -> int | None:
    count = None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key.lower() not in KEYS:
            fail(name, line.number, f"{shown(word)}: unknown; {known(KEYS)}")
        if key.lower() in ("slots", "gpus"):
            count = whole(value, 1_000_000)
            if count is None:
                sentence = f"{shown(word)}: expected a whole number of slots"
                fail(name, line.number, sentence)
    return count


IMPORTER = FactsImporter(
    sign=r"(?m)^[\w.@-]{1,80}[ \t]{1,20}slots ?= ?\d",
    parse=parse,
)
