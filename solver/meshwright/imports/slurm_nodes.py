"""Nodes and GPUs as Slurm sees them: `scontrol show node`, `sinfo`, `slurmd -G`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from meshwright.imports.hostfile import HostLists
from meshwright.imports.machines.facts import MAX_DEVICES, MachineFacts, Pair, PeerLinks
from meshwright.imports.registry import Importer, MachineImporter
from meshwright.imports.text import Line, fail, read_lines, shown, whole
from meshwright.spec.gpu import Gpu

_KEY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z_:]{0,40})=")
_GRES = re.compile(
    r"gpu(?::([\w.+-]{1,80}?))?(?::no_consume)?(?::(\d{1,6}))?(?:\([^)]{0,200}\))?"
)
_TRES = re.compile(r"gres/gpu(?::([\w.+-]{1,80}))?=(\d{1,6})")

MOST_MIB = 2**32
"""Most memory of a host, four PiB."""

UNTYPED = "gpu"
"""Stands for GPUs whose type nothing names."""


def summed(nodes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return how many GPUs of each type all nodes have."""
    total: Counter[str] = Counter()
    for gpus in nodes:
        total.update(gpus)
    return dict(total)


OUT_OF_SERVICE = re.compile(r"(?i)\b(?:down|drain|drng|fail|inval|futr|future)")
"""States of nodes on which no job starts (Slurm's sinfo, `NODE STATE CODES`)."""


def is_out_of_service(state: str) -> bool:
    """Return whether a node in a state takes no job; powered down ones come up."""
    return OUT_OF_SERVICE.search(state.replace("POWERED_DOWN", "")) is not None


@dataclass(frozen=True)
class SlurmNode:
    """One node as scontrol describes it."""

    name: str
    gpus: Mapping[str, int]
    """Number of GPUs by type."""
    state: str = ""
    instance: str = ""
    """The instance type of a cloud, where Slurm was told of it."""
    host_mib: int | None = None
    """Memory that Slurm gives to jobs, `RealMemory`."""
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
    def out_of_service(self) -> tuple[str, ...]:
        """Return the names of the nodes that take no job."""
        down = (node.name for node in self.nodes if is_out_of_service(node.state))
        return tuple(down)

    def in_service(self) -> SlurmNodes:
        """Return the nodes that take jobs."""
        up = (node for node in self.nodes if not is_out_of_service(node.state))
        return replace(self, nodes=tuple(up))

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """Return how many GPUs of each type all nodes have."""
        return summed(node.gpus for node in self.nodes)


def parse_scontrol(text: str, name: str) -> SlurmNodes:
    """Return the nodes of `scontrol show node`.

    Raises:
        SpecError: there is no node, or a Gres that is not understood; with line.
    """
    records = _records(read_lines(text, name))
    if not records:
        fail(name, 0, "no NodeName=; expected the output of scontrol show node")
    notes: list[str] = []
    nodes = tuple(_node(record, notes) for record in records)
    return SlurmNodes(name, nodes, tuple(notes))


def _records(lines: list[Line]) -> list[Line]:
    """Return one line for each node: its lines, joined."""
    parts: list[tuple[Line, list[str]]] = []
    for line in lines:
        start = line.text.find("NodeName=")
        if start >= 0 and (start == 0 or not line.text[start - 1].isalnum()):
            parts.append((line, [line.text[start:]]))
        elif parts and line.text.strip():
            parts[-1][1].append(line.text.strip())
    return [line._replace(text=" ".join(texts)) for line, texts in parts]


def _node_fields(text: str) -> dict[str, str]:
    """Return values by key; a value goes on to the next key, blanks included."""
    keys = list(_KEY.finditer(text))
    ends = [key.start() for key in keys[1:]] + [len(text)]
    fields: dict[str, str] = {}
    for key, end in zip(keys, ends, strict=True):
        fields.setdefault(key[1], text[key.end() : end].strip())
    return fields


def _node(record: Line, notes: list[str]) -> SlurmNode:
    fields = _node_fields(record.text)
    title = fields["NodeName"]
    gpus = gpus_of_gres(fields.get("Gres", ""), record)
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
        host_mib=whole(fields.get("RealMemory", ""), MOST_MIB),
        cpus=whole(fields.get("CPUTot", "")),
        sockets=whole(fields.get("Sockets", "")),
        line=record.number,
    )


def gpus_of_gres(text: str, record: Line) -> dict[str, int]:
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
            record.fail(f"Gres={shown(part)}: expected gpu:<type>:<number>")
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


@dataclass(frozen=True)
class SlurmInfo:
    """The nodes, each with its GPUs, in the order of their first line."""

    name: str
    gpus: Mapping[str, Mapping[str, int]]
    """By node, GPUs by type; none where the format has no GRES."""
    states: Mapping[str, int]
    """Nodes by state."""
    partitions: tuple[str, ...] = ()
    out_of_service: tuple[str, ...] = ()
    """Names of the nodes that take no job."""

    def in_service(self) -> SlurmInfo:
        """Return the nodes that take jobs."""
        down = set(self.out_of_service)
        up = {name: gpus for name, gpus in self.gpus.items() if name not in down}
        return replace(self, gpus=up, out_of_service=())

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.gpus)

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """Return how many GPUs of each type all nodes have."""
        return summed(self.gpus.values())


def parse_sinfo(text: str, name: str) -> SlurmInfo:
    """Return the nodes that sinfo lists.

    Raises:
        SpecError: no heading with NODELIST, or a column that is not understood.
    """
    titles: list[str] = []
    hosts = HostLists(name)
    gpus: dict[str, dict[str, int]] = {}
    states: dict[str, str] = {}
    partitions: dict[str, None] = {}
    for line in read_lines(text, name):
        words = line.text[:200_000].replace("|", " ").split()
        if not words:
            continue
        if any(title in words for title in ("NODELIST", "HOSTNAMES")):
            titles = words
        elif titles:
            row = _row(titles, words, line)
            listed = hosts.expand(
                row["NODELIST" if "NODELIST" in titles else "HOSTNAMES"], line.number
            )
            found = gpus_of_gres(row.get("GRES", ""), line)
            partitions[row.get("PARTITION", "").rstrip("*")] = None
            for host in listed:
                states[host] = row.get("STATE", "").rstrip("*~#$@^!%-+")
                known = gpus.setdefault(host, found)
                if sum(found.values()) > sum(known.values()):
                    gpus[host] = found
    if not gpus:
        fail(name, 0, "no node below a heading with NODELIST; expected that of sinfo")
    counts = dict(Counter(state for state in states.values() if state))
    down = tuple(host for host, state in states.items() if is_out_of_service(state))
    return SlurmInfo(name, gpus, counts, tuple(p for p in partitions if p), down)


def _row(titles: list[str], words: list[str], line: Line) -> dict[str, str]:
    """Return the fields of a row by title.

    Raises:
        SpecError: it has not one word for each title.
    """
    if titles[-1] == "REASON":  # the one column that has blanks
        words = [*words[: len(titles) - 1], " ".join(words[len(titles) - 1 :])]
    if len(words) != len(titles):
        sentence = f"{shown(line.text.strip())}: {len(words)} columns; the heading has"
        line.fail(f"{sentence} {len(titles)}")
    return dict(zip(titles, words, strict=True))


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


def parse_gres(text: str, name: str) -> SlurmGres:
    """Return the GPUs of `slurmd -G` or gres.conf.

    Raises:
        SpecError: no GPU, or a value that is not understood; with file and line.
    """
    gpus: list[GresGpu] = []
    mem_bytes, notes, node = None, [], None
    for line in read_lines(text, name):
        fields = _gres_fields(line)
        kind = fields.get("name", "").lower()
        if kind == "vrampergpu":
            mem_bytes = _count(fields.get("count", ""), line)
        elif kind == "gpu":
            node = fields.get("nodename", "") if node is None else node
            if fields.get("nodename", "") == node:
                gpus += _gpus(fields, line, name)
                _check_count(len(gpus), line)
            else:
                notes.append(f"Nodes other than {node} are left out.")
    if not gpus:
        fail(name, 0, "no line with Name=gpu; expected slurmd -G or gres.conf")
    _check_links(gpus, name)
    return SlurmGres(name, tuple(gpus), mem_bytes, tuple(dict.fromkeys(notes)))


def _gres_fields(line: Line) -> dict[str, str]:
    text = line.text.split("#", 1)[0]
    return {key.lower(): value for key, value in _PAIR.findall(text[:40_000])}


def _gpus(fields: Mapping[str, str], line: Line, name: str) -> list[GresGpu]:
    """Return the GPUs of a line: one for each file, else as many as Count says."""
    files = HostLists(name).expand(fields.get("file", ""), line.number)
    count = _count(fields.get("count") or str(len(files) or 1), line)
    total = max(len(files), count)
    _check_count(total, line)
    values = [fields.get(key, "") for key in ("type", "cores")]
    kind, cores = ("" if value in ABSENT else value for value in values)
    return [GresGpu(kind, cores, _links(fields, line), line.number)] * total


def _check_count(gpus: int, line: Line) -> None:
    if gpus > MAX_DEVICES:
        line.fail(f"{gpus:,} GPUs; expected at most {MAX_DEVICES}")


def _count(text: str, line: Line) -> int:
    unit = _UNITS.get(text[-1:].upper(), 1)
    number = whole(text[:-1] if unit > 1 else text)
    if number is None:
        line.fail(f"Count={shown(text)}: expected a whole number")
    return number * unit


def _links(fields: Mapping[str, str], line: Line) -> tuple[int, ...]:
    text = fields.get("links", "")
    if text in ABSENT:
        return ()
    numbers = [-1 if word == "-1" else whole(word, 1_000) for word in text.split(",")]
    if None in numbers:
        line.fail(f"Links={shown(text)}: expected NVLinks per GPU, as in -1,4,0,0")
    return tuple(number for number in numbers if number is not None)


def _check_links(gpus: list[GresGpu], name: str) -> None:
    for gpu in gpus:
        if gpu.links and len(gpu.links) != len(gpus):
            sentence = f"{len(gpu.links)} links; expected one for each of {len(gpus)}"
            fail(name, gpu.line, f"{sentence} GPUs")


def to_machine(facts: SlurmGres, _gpu: Gpu) -> MachineFacts:
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


IMPORTERS = {
    "scontrol": Importer(
        sign=r"\bNodeName=\S{1,200} .{0,400}\b(?:CoresPerSocket|CPUTot|State)=",
        parse=parse_scontrol,
    ),
    "sinfo": Importer(
        sign=r"(?m)^\s{0,9}(?:PARTITION|NODELIST|HOSTNAMES)\b.{0,200}\b(?:NODELIST|STATE|GRES)\b",
        parse=parse_sinfo,
    ),
    "slurm_gres": MachineImporter(
        sign=r"\bGres Name=|\bName=gpu\b|AutoDetect=",
        parse=parse_gres,
        to_machine=to_machine,
    ),
}
