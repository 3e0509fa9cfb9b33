"""`ibnetdiscover -p`: one line for each port, with the port at the other end.

CA    5  1 0x000.. 4x HDR - SW    4  1 0x000.. ( 'host mlx5_0' - 'leaf1' )
SW    4  9 0x000.. 4x SDR                       'leaf1'
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.imports.infiniband.ib_fabric import LANE_GBIT_S, Block, IbFabric, Port
from meshwright.imports.text import Line, fail, known, shown

KINDS = {"CA": ("Ca", "H-"), "SW": ("Switch", "S-"), "RT": ("Rt", "R-")}
"""By the first word of an end: its kind, and the letter before its guid."""

MOST_PORTS = 200_000

_END = r"(CA|SW|RT)\s{1,9}\d{1,5}\s{1,9}(\d{1,3})\s{1,9}0x([0-9a-fA-F]{1,16})"
_START = re.compile(
    _END + r"\s{1,9}(?:(\d{1,2})x\s{1,9}(\S{1,9})|\?{1,9}\s{0,9}\S{0,9})?"
)
_PEER = re.compile(r"\s{1,99}-\s{1,99}" + _END + r"\s{1,99}\(")
_NAMES = re.compile(
    r"\(\s{0,9}'(.{0,200}?)'\s{1,9}-\s{1,9}'(.{0,200}?)'\s{0,9}\)\s{0,9}"
)


def is_port_line(line: Line) -> bool:
    """Return whether a line is one of `ibnetdiscover -p`."""
    return _START.match(line.text[:100].strip()) is not None


def read_port_lines(lines: Sequence[Line], name: str) -> IbFabric:
    """Return the blocks and ports of a list of ports.

    Raises:
        SpecError: a speed is unknown, or there are too many ports; with file and line.
    """
    blocks: dict[str, Block] = {}
    ports: list[Port] = []
    for number, text in lines:
        line = Line(number, text.strip()[:1_000])
        start = _START.match(line.text)
        if start is None:
            continue
        peer = _PEER.match(line.text, start.end())
        names = _NAMES.search(line.text, peer.end() - 1) if peer else None
        titles = (names[1], names[2]) if names else ("", "")
        owner = _block(blocks, start[1], start[3], titles[0], number)
        if peer is None:
            continue  # nothing is plugged in
        other = _block(blocks, peer[1], peer[3], titles[1], number)
        speed = _speed(start, line, name)
        ports.append(Port(owner, start[2], other, peer[2], titles[1], speed))
        if len(ports) > MOST_PORTS:
            fail(name, number, f"expected at most {MOST_PORTS:,} ports")
    return IbFabric(name, tuple(blocks.values()), tuple(ports))


def _block(
    blocks: dict[str, Block], kind: str, guid: str, title: str, line: int
) -> str:
    """Return the guid of an end, which becomes a block where it is new."""
    word, letter = KINDS[kind]
    full = letter + guid.lower().zfill(16)
    if full not in blocks or (title and not blocks[full].name):
        blocks[full] = Block(word, full, title.strip(), line)
    return full


def _speed(start: re.Match[str], line: Line, name: str) -> str:
    """Return the speed, such as 4xHDR; empty where the tool prints ???."""
    if not start[4] or "?" in start[5]:
        return ""
    if start[5] not in LANE_GBIT_S:
        fail(
            name, line.number, f"{shown(start[5])}: unknown speed; {known(LANE_GBIT_S)}"
        )
    return f"{start[4]}x{start[5]}"
