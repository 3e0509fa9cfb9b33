"""GPUs as Slurm sees them: `slurmd -G`, or gres.conf with `Links=`.

`Links=` of a GPU lists its NVLinks to every GPU of the node, -1 for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.imports.imported import Imported
from meshwright.imports.importer import MachineImporter
from meshwright.imports.machine_facts import MAX_DEVICES, MachineFacts, Pair, PeerLinks
from meshwright.imports.machine_graph import to_graph
from meshwright.imports.slurm.hostlist import expand
from meshwright.imports.text import Line, fail, read_lines, shown, whole
from meshwright.spec.gpu import Gpu

ABSENT = ("", "(null)", "N/A")

_PAIR = re.compile(r"([A-Za-z_]{1,40})=(\S{0,20000})")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class GresGpu:
    """One GPU of the node."""

    type: str
    cores: str
    links: tuple[int, ...]
    """NVLinks to each GPU of the node, -1 for itself; empty where not given."""
    line: int


@dataclass(frozen=True)
class SlurmGres:
    """The GPUs of one node, in the order of the file."""

    name: str
    gpus: tuple[GresGpu, ...]
    mem_bytes: int | None = None
    """Memory of one GPU, where slurmd counts it."""
    notes: tuple[str, ...] = ()


def parse(text: str, name: str) -> SlurmGres:
    """Return the GPUs of `slurmd -G` or gres.conf.

    Raises:
        SpecError: no GPU, or a value that is not understood; with file and line.
    """
    gpus: list[GresGpu] = []
    mem_bytes, notes, node = None, [], None
    for line in read_lines(text, name):
        fields = _fields(line)
        kind = fields.get("name", "").lower()
        if kind == "vrampergpu":
            mem_bytes = _count(fields.get("count", ""), line, name)
        elif kind == "gpu":
            node = fields.get("nodename", "") if node is None else node
            if fields.get("nodename", "") == node:
                gpus += _gpus(fields, line, name)
                _check_count(len(gpus), line, name)
            else:
                notes.append(f"Nodes other than {node} are left out.")
    if not gpus:
        fail(name, 0, "no line with Name=gpu; expected slurmd -G or gres.conf")
    _check_links(gpus, name)
    return SlurmGres(name, tuple(gpus), mem_bytes, tuple(dict.fromkeys(notes)))


def _fields(line: Line) -> dict[str, str]:
    text = line.text.split("#", 1)[0]
    return {key.lower(): value for key, value in _PAIR.findall(text[:40_000])}


def _gpus(fields: Mapping[str, str], line: Line, name: str) -> list[GresGpu]:
    """Return the GPUs of a line: one for each file, else as many as Count says."""
    files = expand(fields.get("file", ""), name, line.number)
    count = _count(fields.get("count") or str(len(files) or 1), line, name)
    total = max(len(files), count)
    _check_count(total, line, name)
    values = [fields.get(key, "") for key in ("type", "cores")]
    kind, cores = ("" if value in ABSENT else value for value in values)
    return [GresGpu(kind, cores, _links(fields, line, name), line.number)] * total


def _check_count(gpus: int, line: Line, name: str) -> None:
    if gpus > MAX_DEVICES:
        fail(name, line.number, f"{gpus:,} GPUs; expected at most {MAX_DEVICES}")


def _count(text: str, line: Line, name: str) -> int:
    unit = _UNITS.get(text[-1:].upper(), 1)
    number = whole(text[:-1] if unit > 1 else text)
    if number is None:
        fail(name, line.number, f"Count={shown(text)}: expected a whole number")
    return number * unit


def _links(fields: Mapping[str, str], line: Line, name: str) -> tuple[int, ...]:
    text = fields.get("links", "")
    if text in ABSENT:
        return ()
    numbers = [-1 if word == "-1" else whole(word, 1_000) for word in text.split(",")]
    if None in numbers:
        sentence = f"Links={shown(text)}: expected NVLinks per GPU, as in -1,4,0,0"
        fail(name, line.number, sentence)
    return tuple(number for number in numbers if number is not None)


def _check_links(gpus: list[GresGpu], name: str) -> None:
    for gpu in gpus:
        if gpu.links and len(gpu.links) != len(gpus):
            sentence = f"{len(gpu.links)} links; expected one for each of {len(gpus)}"
            fail(name, gpu.line, f"{sentence} GPUs")


def to_topology(facts: SlurmGres, gpu: Gpu, gpu_name: str) -> Imported:
    """Return the machine as nodes and links.

    Raises:
        SpecError: a bandwidth is not known.
    """
    return to_graph(to_machine(facts), gpu, gpu_name)


def to_machine(facts: SlurmGres) -> MachineFacts:
    """Return NVLinks and sockets; Slurm knows nothing of PCIe."""
    names = tuple(f"GPU{i}" for i in range(len(facts.gpus)))
    counts: dict[Pair, int] = {}
    for i, gpu in enumerate(facts.gpus):
        for j, count in enumerate(gpu.links):
            if i != j and count > 0:
                pair = frozenset((names[i], names[j]))
                counts[pair] = max(count, counts.get(pair, 0))
    return MachineFacts(
        gpus=names,
        peers=PeerLinks("NVLink", counts),
        sockets={
            name: f"cores {gpu.cores}"
            for name, gpu in zip(names, facts.gpus, strict=True)
            if gpu.cores
        },
        notes=tuple(_notes(facts)),
    )


def _notes(facts: SlurmGres) -> list[str]:
    notes = list(facts.notes)
    if not any(gpu.links for gpu in facts.gpus):
        notes.append("The file has no Links=; no NVLink is drawn.")
    rows = [gpu.links for gpu in facts.gpus if gpu.links]
    is_whole = len(rows) == len(facts.gpus)
    if is_whole and rows != [tuple(column) for column in zip(*rows, strict=True)]:
        notes.append("Links= is not symmetric; the larger number of a pair is taken.")
    return notes


IMPORTER = MachineImporter(
    sign=r"\bGres Name=|\bName=gpu\b|AutoDetect=",
    parse=parse,
    to_topology=to_topology,
)
