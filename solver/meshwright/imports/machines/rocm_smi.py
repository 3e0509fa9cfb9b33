"""`rocm-smi --showtopo`: weight, hops and link type of pairs of GPUs, NUMA nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.imports.machines.facts import (
    MAX_DEVICES,
    MachineFacts,
    Pair,
    PeerLinks,
    pairs_of,
)
from meshwright.imports.registry import MachineImporter
from meshwright.imports.text import (
    Line,
    data_in,
    fail,
    known,
    mappings,
    read_lines,
    shown,
    whole,
)
from meshwright.spec.gpu import Gpu

LINK_TYPES = ("XGMI", "PCIE", "XXXX", "N/A")
"""The tool prints XXXX or N/A where the driver does not know the type."""

BLOCKS = {
    "weight between two gpus": "weight",
    "hops between two gpus": "hops",
    "link type between two gpus": "type",
    "numa nodes": "numa",
}

SAME_ROOT_WEIGHT = 40
"""Weight of two GPUs that PCIe joins below one root complex."""

_TITLE = re.compile(r"={2,}\s{0,9}([^=]{1,80}?)\s{0,9}={2,}")
_GPU = re.compile(r"GPU\[?(\d{1,4})\]?")
_NUMA = re.compile(
    r"GPU\s{0,4}\[?(\d{1,4})\]?\s{0,20}:.{0,40}Numa Node:\s{0,4}(-?\d{1,4})"
)

Matrix = Mapping[tuple[str, str], str]
Blocks = dict[str, dict[tuple[str, str], str]]


@dataclass(frozen=True)
class RocmTopo:
    """The blocks as the tool prints them; a block that it left out is empty."""

    name: str
    gpus: tuple[str, ...]
    blocks: Mapping[str, Matrix] = field(default_factory=dict)
    """Cells by row and column of "weight", "hops" and "type", without the diagonal."""
    numa: Mapping[str, int] = field(default_factory=dict)

    def cell(self, block: str, a: str, b: str) -> str | None:
        """Return the cell of two GPUs in a block, from whichever row has it."""
        cells = self.blocks.get(block, {})
        return cells.get((a, b)) or cells.get((b, a))

    def counts(self, block: str) -> dict[str, int]:
        """Return how many pairs of GPUs have each value of a block."""
        pairs = [(a, b) for i, a in enumerate(self.gpus) for b in self.gpus[i + 1 :]]
        return dict(Counter(filter(None, (self.cell(block, a, b) for a, b in pairs))))

    @property
    def asymmetric(self) -> list[tuple[str, str]]:
        """Return the pairs whose two cells differ in some block."""
        return [
            (a, b)
            for cells in self.blocks.values()
            for (a, b), cell in cells.items()
            if int(a[3:]) < int(b[3:]) and cells.get((b, a), cell) != cell
        ]


def parse(text: str, name: str) -> RocmTopo:
    """Return the blocks of `rocm-smi --showtopo` or of one of its parts.

    Raises:
        SpecError: there is no matrix, or a link type is unknown; with file and line.
    """
    blocks: Blocks = {}
    numa: dict[str, int] = {}
    block = ""
    columns: list[str] = []
    for line in read_lines(text, name):
        title = _TITLE.search(line.text[:400])
        if title:
            block, columns = BLOCKS.get(title[1].lower(), ""), []
        elif block == "numa":
            match = _NUMA.search(line.text[:400])
            numa |= {f"GPU{match[1]}": int(match[2])} if match else {}
        elif block:
            words = line.text.split()
            names = [f"GPU{m[1]}" for m in map(_GPU.fullmatch, words) if m]
            if names and not _GPU.fullmatch(words[0]):
                line.fail(f"{shown(words[0])}: a row outside of a matrix")
            columns = _read_row(words, names, columns, line, block, blocks)
    named = {gpu for cells in blocks.values() for pair in cells for gpu in pair}
    gpus = sorted(named | {*numa}, key=lambda gpu: int(gpu[3:]))
    if not gpus:
        fail(name, 0, "no matrix of GPUs; expected the output of rocm-smi --showtopo")
    if len(gpus) > MAX_DEVICES:
        fail(name, 0, f"{len(gpus):,} GPUs; expected at most {MAX_DEVICES}")
    return RocmTopo(name, tuple(gpus), blocks, numa)


def _read_row(
    words: list[str],
    names: list[str],
    columns: list[str],
    line: Line,
    block: str,
    blocks: Blocks,
) -> list[str]:
    """Store the cells of a row; return the columns that hold for the next line.

    `names` are the GPUs among the words: all of them in a heading, the first in a row.
    """
    if not names:
        return columns
    if len(names) == len(words) and (len(words) > 1 or not columns):
        if len(set(names)) < len(names) or len(names) > MAX_DEVICES:
            line.fail(f"expected up to {MAX_DEVICES} columns, each once")
        return names
    label, cells = names[0], words[1:]
    if not columns:
        line.fail(f"{shown(words[0])}: a row outside of a matrix")
    if len(cells) != len(columns):
        line.fail(f"{label} has {len(cells)} cells; expected {len(columns)}")
    for column, cell in zip(columns, cells, strict=True):
        if column != label and cell != "SELF":
            check_cell(block, cell, line)
            blocks.setdefault(block, {})[label, column] = cell
    return columns


def check_cell(block: str, cell: str, line: Line) -> None:
    """Refuse a cell that its block does not have."""
    if block == "type" and cell not in LINK_TYPES:
        line.fail(f"{shown(cell)}: unknown link type; {known(LINK_TYPES)}")
    if block != "type" and whole(cell) is None and cell not in LINK_TYPES:
        line.fail(f"{shown(cell)}: expected a whole number")


def to_machine(facts: RocmTopo, gpu: Gpu) -> MachineFacts:
    """Return XGMI links and PCIe relations of the blocks.

    Raises:
        SpecError: the block of link types is missing.
    """
    if len(facts.gpus) > 1 and not facts.blocks.get("type"):
        sentence = "no block of link types; expected that of --showtopo or "
        fail(facts.name, 0, sentence + "--showtopotype")
    joined: list[Pair] = []
    relations: dict[Pair, str] = {}
    for pair in pairs_of(facts.gpus):
        a, b = sorted(pair, key=facts.gpus.index)
        if facts.cell("type", a, b) == "XGMI":
            joined.append(pair)
        else:
            relations[pair] = _relation(facts, a, b)
    notes = _notes(facts, relations)
    each = _links_each(joined, facts.gpus, gpu, notes)
    return MachineFacts(
        gpus=facts.gpus,
        peers=PeerLinks("XGMI", dict.fromkeys(joined, each)),
        relations=relations,
        sockets={name: f"node {node}" for name, node in facts.numa.items()},
        notes=tuple(notes),
    )


def _relation(facts: RocmTopo, a: str, b: str) -> str:
    """Return the relation of two GPUs over PCIe, by weight, then by NUMA node."""
    if facts.cell("weight", a, b) == str(SAME_ROOT_WEIGHT):
        return "PHB"
    is_same = a in facts.numa and facts.numa[a] == facts.numa.get(b)
    return "NODE" if is_same else "SYS"


def _links_each(
    joined: list[Pair], gpus: Sequence[str], gpu: Gpu, notes: list[str]
) -> int:
    """Return the XGMI links of each joined pair, which the tool does not print."""
    most = max((sum(g in pair for pair in joined) for g in gpus), default=0)
    if not most:
        return 1
    each = max(1, (gpu.peer_links or 0) // most)
    notes.append(f"Each pair that XGMI joins is assumed to have {each} links of it.")
    return each


def _notes(facts: RocmTopo, relations: Mapping[Pair, str]) -> list[str]:
    notes = []
    weighed = sum(
        facts.cell("weight", *pair) == str(SAME_ROOT_WEIGHT) for pair in relations
    )
    if relations:
        told = f"{len(relations) - weighed} from the NUMA nodes"
        if weighed:
            told = f"{weighed} from a weight of {SAME_ROOT_WEIGHT} (one root), {told}"
        notes.append(f"How PCIe joins {len(relations)} pairs is taken: {told}.")
    unknown = sum(facts.counts("type").get(kind, 0) for kind in LINK_TYPES[2:])
    if unknown:
        notes.append(f"{unknown} pairs have no known link type; taken as PCIe.")
    if facts.asymmetric:
        a, b = facts.asymmetric[0]
        notes.append(
            f"The blocks are not symmetric in {len(facts.asymmetric)} pairs, such as "
            f"{a} and {b}; the upper cell is taken."
        )
    return notes


TABLES = {"weight table": "weight", "hops table": "hops", "link type table": "type"}

FIELDS = {"weight": "weight", "num_hops": "hops", "link_type": "type"}
"""By field of a link in JSON, the block of rocm-smi."""

_AMD_TITLE = re.compile(r"\s{0,20}([A-Z][A-Z -]{2,40}) TABLE:\s{0,20}")
_BUS_ID = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")


def parse_amd_smi(text: str, name: str) -> RocmTopo:
    """Return the tables of `amd-smi topology`.

    Raises:
        SpecError: there is no table, or a link type is unknown; with file and line.
    """
    blocks: Blocks = {}
    if text.lstrip("\ufeff \t\r\n").startswith(("[", "{")):
        order = _read_json(text, name, blocks)
    else:
        order = _read_tables(read_lines(text, name), blocks)
    if not order:
        fail(name, 0, "no table of bus ids; expected the output of amd-smi topology")
    if len(order) > MAX_DEVICES:
        fail(name, 0, f"{len(order):,} GPUs; expected at most {MAX_DEVICES}")
    numbers = {bus_id: f"GPU{i}" for i, bus_id in enumerate(order)}
    named = {
        block: {(numbers[a], numbers[b]): cell for (a, b), cell in cells.items()}
        for block, cells in blocks.items()
    }
    return RocmTopo(name, tuple(numbers.values()), named)


def _read_tables(lines: list[Line], blocks: Blocks) -> list[str]:
    """Store the cells of all tables; return the bus ids in the order of columns."""
    block, columns, order = "", list[str](), dict[str, None]()
    for line in lines:
        words = line.text.split()
        if title := _AMD_TITLE.fullmatch(line.text[:80]):
            block, columns = TABLES.get(f"{title[1].lower()} table", ""), []
        elif block and words and _BUS_ID.fullmatch(words[0]):
            names = [word for word in words if _BUS_ID.fullmatch(word)]
            if columns or len(names) == len(words):
                columns = _read_row(words, names, columns, line, block, blocks)
                order |= dict.fromkeys((*columns, names[0]))
    return [*order]


def _read_json(text: str, name: str, blocks: Blocks) -> list[str]:
    """Store the links of a list of GPUs; return their bus ids in its order."""
    if (data := data_in(text)) is None:
        fail(name, 1, "not JSON; expected that of amd-smi topology --json")
    items = mappings(data if isinstance(data, list) else [data])
    gpus = [item for item in items if "links" in item]
    order = dict.fromkeys(str(gpu.get("bdf")) for gpu in gpus[: MAX_DEVICES + 1])
    for gpu in gpus:
        for link in mappings(gpu["links"]):
            pair = (str(gpu.get("bdf")), str(link.get("bdf")))
            if pair[0] != pair[1] and {*pair} <= order.keys():
                _store(link, pair, name, blocks)
    return [*order]


def _store(
    link: dict[str, Any], pair: tuple[str, str], name: str, blocks: Blocks
) -> None:
    for key, block in FIELDS.items():
        cell = str(link.get(key, ""))
        if not cell or cell == "SELF":
            continue
        if block == "type" and cell not in LINK_TYPES:
            fail(name, 0, f"link_type: {shown(cell)}: unknown link type")
        blocks.setdefault(block, {})[pair] = cell


IMPORTERS = {
    "rocm_smi": MachineImporter(
        sign=r"={2} ?(?:Weight|Hops|Link Type) between two|ROCm System Man",
        parse=parse,
        to_machine=to_machine,
    ),
    "amd_smi": MachineImporter(
        sign=r"(?m)^\s{0,9}(?:WEIGHT|HOPS|LINK TYPE) TABLE:|\"link_type\"\s{0,9}:",
        parse=parse_amd_smi,
        to_machine=to_machine,
    ),
}
