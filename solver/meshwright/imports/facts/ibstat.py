"""InfiniBand ports by host: `ibstat`, or host names, each with its port GUIDs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.imports.importer import FactsImporter
from meshwright.imports.text import fail, read_lines, shown

_HOST = re.compile(r"VM_hostname\s{1,20}(\S{1,200})")
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{12,16})")
_PORT_GUID = re.compile(r"Port GUID:\s{1,20}(?:0x)?([0-9a-fA-F]{1,16})")
_OTHER = re.compile(r"CA '|Port \d|[A-Z][A-Za-z /0-9]{1,40}:|#")

THIS_HOST = "localhost"
"""Stands for the host that ibstat ran on, which it does not print."""


@dataclass(frozen=True)
class IbPorts:
    """Port GUIDs, small letters without 0x, by host."""

    name: str
    guids: Mapping[str, tuple[str, ...]]


def parse(text: str, name: str) -> IbPorts:
    """Return the port GUIDs of each host.

    Raises:
        SpecError: no port, or a line that is neither host nor GUID; with line.
    """
    guids: dict[str, list[str]] = {}
    host = ""
    for number, text_of_line in read_lines(text, name):
        line = text_of_line.strip()[:400]
        if match := _HOST.fullmatch(line):
            host = match[1]
            guids.setdefault(host, [])
        elif match := _PORT_GUID.fullmatch(line) or _GUID.fullmatch(line):
            guids.setdefault(host or THIS_HOST, []).append(match[1].lower())
        elif line and not _OTHER.match(line):
            sentence = "expected VM_hostname, a port GUID or a line of ibstat"
            fail(name, number, f"{shown(line)}: {sentence}")
    if not any(guids.values()):
        fail(name, 0, "no port GUID; expected the output of ibstat")
    return IbPorts(name, {host: tuple(found) for host, found in guids.items()})


IMPORTER = FactsImporter(
    sign=r"(?m)^VM_hostname |^CA '|^\s{0,9}Port GUID: ",
    parse=parse,
)
