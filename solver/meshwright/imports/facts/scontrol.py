"""`scontrol show node`, with and without -o: GPUs, state and kind of each node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.imports.importer import FactsImporter
from meshwright.imports.text import Line, fail, read_lines, shown, whole

_KEY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z_:]{0,40})=")
_GRES = re.compile(
    r"gpu(?::([\w.+-]{1,80}?))?(?::no_consume)?(?::(\d{1,6}))?(?:\([^)]{0,200}\))?"
)
_TRES = re.compile(r"gres/gpu(?::([\w.+-]{1,80}))?=(\d{1,6})")

UNTYPED = "gpu"
"""Stands for GPUs without a type."""


@dataclass(frozen=True)
class SlurmNode:
    """One node as scontrol describes it."""

    name: str
    gpus: Mapping[str, int]
    """Number of GPUs by type."""
    state: str = ""
    instance: str = ""
    """The instance type of a cloud, where Slurm was told of it."""
    memory_mib: int | None = None
    cpus: int | None = None
    sockets: int | None = None
    line: int = 0


@dataclass(frozen=True)
class SlurmNodes:
    """All nodes, in the order of the file."""

    name: str
    nodes: tuple[SlurmNode, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """Return how many GPUs of each type all nodes have."""
        total: Counter[str] = Counter()
        for node in self.nodes:
            total.update(node.gpus)
        return dict(total)


def parse(text: str, name: str) -> SlurmNodes:
    """Return the nodes of `scontrol show node`.

    Raises:
        SpecError: there is no node, or a Gres that is not understood; with line.
    """
    records = _records(read_lines(text, name))
    if not records:
        fail(name, 0, "no NodeName=; expected the output of scontrol show node")
    notes: list[str] = []
    nodes = tuple(_node(record, name, notes) for record in records)
    return SlurmNodes(name, nodes, tuple(notes))


def _records(lines: list[Line]) -> list[Line]:
    """Return one line for each node: its lines, joined."""
    parts: list[tuple[int, list[str]]] = []
    for line in lines:
        start = line.text.find("NodeName=")
        if start >= 0 and (start == 0 or not line.text[start - 1].isalnum()):
            parts.append((line.number, [line.text[start:]]))
        elif parts and line.text.strip():
            parts[-1][1].append(line.text.strip())
    return [Line(number, " ".join(texts)) for number, texts in parts]


def _fields(text: str) -> dict[str, str]:
    """Return values by key; a value goes on to the next key, blanks included."""
    keys = list(_KEY.finditer(text))
    ends = [key.start() for key in keys[1:]] + [len(text)]
    fields: dict[str, str] = {}
    for key, end in zip(keys, ends, strict=True):
        fields.setdefault(key[1], text[key.end() : end].strip())
    return fields


def _node(record: Line, name: str, notes: list[str]) -> SlurmNode:
    fields = _fields(record.text)
    title = fields["NodeName"]
    gpus = gpus_of_gres(fields.get("Gres", ""), record, name)
    traced = _tres(fields.get("CfgTRES", ""))
    if gpus and traced and sum(gpus.values()) != sum(traced.values()):
        notes.append(
            f"{title}: Gres has {sum(gpus.values())} GPUs, CfgTRES "
            f"{sum(traced.values())} (it may count MIG slices); Gres is taken."
        )
    return SlurmNode(
        name=title,
        gpus=gpus or traced,
        state=fields.get("State", ""),
        instance=fields.get("InstanceType", ""),
        memory_mib=whole(fields.get("RealMemory", "")),
        cpus=whole(fields.get("CPUTot", "")),
        sockets=whole(fields.get("Sockets", "")),
        line=record.number,
    )


def gpus_of_gres(text: str, record: Line, name: str) -> dict[str, int]:
    """Return the GPUs by type of a list such as gpu:a100:8(S:0-1),craynetwork:4.

    Raises:
        SpecError: an entry of GPUs is not understood; with file and line.
    """
    found: Counter[str] = Counter()
    for part in re.split(r",(?![^()]{0,200}\))", text):
        kind = part.strip().partition(":")[0].partition("(")[0]
        if kind != "gpu":
            continue
        match = _GRES.fullmatch(part.strip())
        if match is None:
            sentence = f"Gres={shown(part)}: expected gpu:<type>:<number>"
            fail(name, record.number, sentence)
        title, count = match[1], match[2]
        if title and title.isdigit() and count is None:
            title, count = None, title
        found[title or UNTYPED] += int(count or 1)
    return dict(found)


def _tres(text: str) -> dict[str, int]:
    """Return GPUs by type; the untyped sum where no type is counted."""
    counts = {m[1]: int(m[2]) for m in _TRES.finditer(text)}
    typed = {title: count for title, count in counts.items() if title}
    return typed or ({UNTYPED: counts[None]} if None in counts else {})


IMPORTER = FactsImporter(
    sign=r"\bNodeName=\S{1,200} .{0,400}\b(?:CoresPerSocket|CPUTot|State)=",
    parse=parse,
)
