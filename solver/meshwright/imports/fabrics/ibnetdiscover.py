"""`ibnetdiscover`: switches and channel adapters of a fabric, port by port.

A block is `Switch 41 "S-<guid>" # "<name>" ..` or `Ca 1 "H-<guid>" # "<host> <hca>"`,
then lines `[port] "<peer>"[its port] # "<name>" lid 1 4xHDR`. With `-p` there is a line
for each port instead, see `infiniband.port_lines`.
"""

from __future__ import annotations

import re

from meshwright.imports.importer import FabricImporter
from meshwright.imports.infiniband.ib_fabric import LANE_GBIT_S, Block, IbFabric, Port
from meshwright.imports.infiniband.levels import to_levels
from meshwright.imports.infiniband.port_lines import is_port_line, read_port_lines
from meshwright.imports.text import Line, fail, known, read_lines, shown

_BLOCK = re.compile(r"(Switch|Ca|Rt)\s{1,20}\d{1,5}\s{1,20}\"([^\"]{1,60})\"")
_PORT = re.compile(
    r"\[(\d{1,5})\](?:\[ext \d{1,5}\])?(?:\([0-9a-fA-FxX]{1,20}\))?\s{1,40}"
    r"\"([^\"]{1,60})\"(?:\[(\d{1,5})\])?"
)
_NAME = re.compile(r"#[^\"]{0,60}\"([^\"]{0,200})\"")
_SPEED = re.compile(r"\s(\d{1,2})x([A-Z]{2,4}\d{0,3})(?=\s|$)")
_STARTS = re.compile(r"(?:Switch|Ca|Rt)\s|\[\d")

MOST_HEADING = 200
"""Lines before the first port of `ibnetdiscover -p`."""

LONGEST = 2_000
"""Characters of a line that are read."""


def parse(text: str, name: str) -> IbFabric:
    """Return the blocks and ports of ibnetdiscover's output.

    Raises:
        SpecError: there is no block, or a line of one is broken; with file and line.
    """
    blocks: list[Block] = []
    ports: list[Port] = []
    lines = read_lines(text, name)
    if any(map(is_port_line, lines[:MOST_HEADING])):
        return read_port_lines(lines, name)
    for number, full in lines:
        line = Line(number, full.strip()[:LONGEST])
        if not _STARTS.match(line.text):
            continue
        if line.text.startswith("["):
            ports.append(_port(blocks, line, name))
        else:
            blocks.append(_block(line, name))
    if not blocks:
        sentence = 'no block such as Switch 41 "S-.."; expected the output of'
        fail(name, 0, f"{sentence} ibnetdiscover")
    return IbFabric(name, tuple(blocks), tuple(ports))


def _block(line: Line, name: str) -> Block:
    match = _BLOCK.match(line.text)
    if match is None:
        sentence = 'expected a block such as Ca 1 "H-0123" # "host mlx5_0"'
        fail(name, line.number, f"{shown(line.text)}: {sentence}")
    title = _NAME.search(line.text, match.end())
    return Block(match[1], match[2], title[1].strip() if title else "", line.number)


def _port(blocks: list[Block], line: Line, name: str) -> Port:
    match = _PORT.match(line.text)
    if match is None or not blocks:
        where = "" if match is None else "a port outside of a block; "
        sentence = f'{where}expected a port such as [1] "S-0123"[2] # "name" 4xHDR'
        fail(name, line.number, f"{shown(line.text)}: {sentence}")
    title = _NAME.search(line.text, match.end())
    speeds = list(_SPEED.finditer(line.text, match.end()))
    if speeds and speeds[-1][2] not in LANE_GBIT_S:
        sentence = f"{speeds[-1][2]}: unknown speed; {known(LANE_GBIT_S)}"
        fail(name, line.number, sentence)
    return Port(
        owner=blocks[-1].guid,
        number=match[1],
        peer=match[2],
        peer_number=match[3] or "",
        peer_name=title[1].strip() if title else "",
        speed=f"{speeds[-1][1]}x{speeds[-1][2]}" if speeds else "",
    )


IMPORTER = FabricImporter(
    sign=r"(?m)^(?:Switch|Ca)\s{1,9}\d{1,5}\s{1,9}\"[SH]-|^switchguid="
    r"|^(?:CA|SW)\s{1,9}\d{1,5}\s{1,9}\d{1,3}\s{1,9}0x[0-9a-f]{8,16}\s",
    parse=parse,
    to_levels=to_levels,
)
