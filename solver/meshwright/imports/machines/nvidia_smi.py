"""`nvidia-smi topo -m`: what joins the pairs of devices of a machine.

The tool puts tabs between fields; copies turn them into blanks, so rows are read by
words: a name, one cell for each column, then the affinities.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshwright.errors import SpecError
from meshwright.imports.machines.defaults import LANE_GB_S, board_links
from meshwright.imports.machines.facts import (
    RELATIONS,
    MachineFacts,
    Nic,
    Pair,
    PeerLinks,
    check_count,
    pairs_of,
)
from meshwright.imports.machines.nvidia_matrix import DENIED, read_paste
from meshwright.imports.registry import MachineImporter
from meshwright.imports.text import Element, fail, parse_xml, read_lines, whole
from meshwright.spec.gpu import Gpu

_PEER = re.compile(r"(?:NV|MX|ICN)(\d{0,3})")


@dataclass(frozen=True)
class NvidiaTopo:
    """The matrix as the tool prints it."""

    name: str
    gpus: tuple[str, ...]
    """The columns of GPUs, in the order of their numbers."""
    nics: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    """The cells by row and column, without the diagonal."""
    tails: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By GPU, the words behind its cells, by the title of their column."""
    nic_legend: Mapping[str, str] = field(default_factory=dict)
    """Device names of NICs that columns call NIC0, NIC1."""
    rows_missing: tuple[str, ...] = ()
    is_elided: bool = False
    """Whether "..." stands for columns or rows."""
    are_gpus_elided: bool = True
    """Whether it may stand for GPUs too."""
    peer_access: Mapping[Pair, str] = field(default_factory=dict)
    """Cells of `nvidia-smi topo -p2p`, where the same paste has them."""
    others: tuple[bool, ...] = ()
    """For each further matrix of the paste, whether its links are the same."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Return GPUs and NICs."""
        return (*self.gpus, *self.nics)

    def cell(self, a: str, b: str) -> str | None:
        """Return the cell of two devices, from whichever row has it."""
        return self.cells.get((a, b)) or self.cells.get((b, a))

    @property
    def asymmetric(self) -> list[tuple[str, str]]:
        """Return the pairs whose two cells differ."""
        place = {device: i for i, device in enumerate(self.devices)}
        return [
            (a, b)
            for (a, b), cell in self.cells.items()
            if place[a] < place[b] and self.cells.get((b, a), cell) != cell
        ]

    @property
    def nic_names(self) -> tuple[str, ...]:
        """Return the device names of the NICs."""
        return tuple(self.nic_legend.get(nic, nic) for nic in self.nics)

    def affinity(self, title: str) -> list[str]:
        """Return the column of a title, such as "CPU Affinity", one word per GPU."""
        return [self.tails.get(gpu, {}).get(title, "") for gpu in self.gpus]


def parse(text: str, name: str) -> NvidiaTopo:
    """Return the matrix of `nvidia-smi topo -m`, from the tool or a copy of it.

    Raises:
        SpecError: there is no matrix, a row is missing, or a cell is of no known kind;
            with file and line.
    """
    return NvidiaTopo(name=name, **read_paste(read_lines(text, name), name))


def to_machine(facts: NvidiaTopo, _gpu: Gpu) -> MachineFacts:
    """Return devices, NVLinks and PCIe relations of a matrix.

    Raises:
        SpecError: the copy leaves out columns, or both cells of a pair of GPUs.
    """
    _check_whole(facts)
    names = _nic_names(facts)
    counts, relations = {}, {}
    for pair in pairs_of(facts.devices):
        a, b = sorted(pair, key=facts.devices.index)
        cell = facts.cell(a, b) or ""
        cell = "SYS" if cell == "SOC" else cell
        named = frozenset(names.get(device, device) for device in pair)
        if cell in RELATIONS:
            relations[named] = cell
        elif cell and pair <= {*facts.gpus}:
            counts[named] = _links(cell)
    nics = tuple(Nic(name) for name in names.values())
    peers = PeerLinks("NVLink", counts)
    sockets = _sockets(facts)
    return MachineFacts(
        facts.gpus,
        nics,
        peers,
        relations,
        sockets,
        has_peer_access=_has_peer_access(facts, peers),
        notes=tuple(_notes(facts)),
    )


def _has_peer_access(facts: NvidiaTopo, peers: PeerLinks) -> bool | None:
    """Return whether pairs without NVLink may copy directly; None if not known."""
    cells = {
        cell for pair, cell in facts.peer_access.items() if pair not in peers.counts
    }
    if cells & DENIED:
        return False
    return True if cells == {"OK"} else None


def _nic_names(facts: NvidiaTopo) -> dict[str, str]:
    """Return the name of each NIC: the legend's, unless two would be the same."""
    names = dict(zip(facts.nics, facts.nic_names, strict=True))
    is_clear = len({*facts.gpus, *names.values()}) == len(facts.devices)
    return names if is_clear else {nic: nic for nic in facts.nics}


def _links(cell: str) -> int:
    match = _PEER.fullmatch(cell)
    return int(match[1] or 1) if match else 0


def _check_whole(facts: NvidiaTopo) -> None:
    if facts.is_elided and facts.are_gpus_elided:
        raise SpecError(f"{facts.name}: '...' leaves out GPUs; expected all columns")
    for i, a in enumerate(facts.gpus):
        for b in facts.gpus[i + 1 :]:
            if not facts.cell(a, b):
                raise SpecError(f"{facts.name}: no cell joins {a} and {b}")


def _sockets(facts: NvidiaTopo) -> dict[str, str]:
    """Return one NUMA node per GPU; its CPUs where the driver prints no node."""
    nodes = facts.affinity("NUMA Affinity")
    cpus = facts.affinity("CPU Affinity")
    found = {}
    for gpu, node, cores in zip(facts.gpus, nodes, cpus, strict=True):
        if node.isdigit():
            found[gpu] = f"node {node}"
        elif node in ("", "N/A") and cores not in ("", "N/A"):
            found[gpu] = f"cores {cores}"
    return found


def _notes(facts: NvidiaTopo) -> list[str]:
    notes = []
    if facts.asymmetric:
        a, b = facts.asymmetric[0]
        one, other = facts.cells[a, b], facts.cells[b, a]
        notes.append(
            f"The matrix is not symmetric in {len(facts.asymmetric)} pairs, such as "
            f"{a} and {b}: {one} and {other}; the upper one is taken."
        )
    if facts.is_elided:
        notes.append(
            f"What '...' leaves out behind {facts.gpus[-1]} is not known; the machine "
            f"is assumed to have the {len(facts.gpus)} GPUs that are shown."
        )
    if facts.others:
        same = "the same" if all(facts.others) else "not all the same"
        notes.append(
            f"The paste has {len(facts.others) + 1} matrices; the first is described, "
            f"the links of the others are {same}. count says how many machines there "
            "are."
        )
    if facts.rows_missing:
        rows = ", ".join(facts.rows_missing)
        notes.append(f"Rows are missing ({rows}); the columns are taken for them.")
    return notes


WAYS = {
    ("Product Name",): "product",
    ("FB Memory Usage", "Total"): "memory",
    ("PCIe Generation", "Max"): "generation",
    ("Link Width", "Max"): "width",
}
"""By the last titles around a value of the text, the field of a GPU."""

TAGS = {
    "product_name": "product",
    "max_link_gen": "generation",
    "max_link_width": "width",
}
"""By element of the XML, the field of a GPU; its memory is in fb_memory_usage."""

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")
_FIELD = re.compile(r"(\s{0,80})(\S[^:]{0,80}?)\s{0,80}(?::\s{0,9}(.{0,200}))?")


@dataclass
class QueriedGpu:
    """One GPU; fields are empty where the tool does not say."""

    bus_id: str
    product: str = ""
    memory: str = ""
    """Such as 81920 MiB."""
    generation: str = ""
    width: str = ""
    """Such as 16x."""

    @property
    def rate_gb_s(self) -> float | None:
        """Return the rate of its PCIe link per direction; None if not known."""
        lanes = whole(self.width.rstrip("x"), 64)
        lane_gb_s = LANE_GB_S.get(f"{self.generation}.0")
        return lane_gb_s * lanes if lane_gb_s and lanes else None


@dataclass(frozen=True)
class NvidiaQuery:
    """The GPUs in the order of the tool."""

    name: str
    gpus: tuple[QueriedGpu, ...]

    @property
    def product(self) -> str:
        """Return the name of the GPUs; empty where they are unlike."""
        products = {gpu.product for gpu in self.gpus}
        return products.pop() if len(products) == 1 else ""


def parse_query(text: str, name: str) -> NvidiaQuery:
    """Return the GPUs of `nvidia-smi -q`, as text or XML.

    Raises:
        SpecError: no GPU is listed; with the file.
    """
    is_xml = text.lstrip("\ufeff \t\r\n").startswith("<")
    gpus = list(_of_xml(text, name) if is_xml else _of_text(text, name))
    if not gpus:
        fail(name, 0, "no GPU; expected the output of nvidia-smi -q")
    return NvidiaQuery(name, tuple(gpus))


def _of_text(text: str, name: str) -> Iterator[QueriedGpu]:
    """Yield GPUs; a title applies to the lines below that are indented more."""
    gpu: QueriedGpu | None = None
    around: list[tuple[int, str]] = []
    for line in read_lines(text, name):
        if match := _GPU.match(line.text.strip()[:60]):
            if gpu is not None:
                yield gpu
            gpu, around = QueriedGpu(match[1].lower()), []
        elif gpu is not None and (field := _FIELD.fullmatch(line.text[:400])):
            depth = len(field[1].expandtabs(8))
            around = [title for title in around if title[0] < depth][-8:]
            titles = tuple([t for _, t in around[-1:]] + [field[2]])
            if field[3] is None:
                around.append((depth, field[2]))
                continue
            key = WAYS.get(titles) or WAYS.get(titles[-1:])
            if key and not getattr(gpu, key):
                setattr(gpu, key, field[3].strip())
    if gpu is not None:
        yield gpu


def _of_xml(text: str, name: str) -> Iterator[QueriedGpu]:
    root = parse_xml(text, name)
    for element in root.all("gpu"):
        gpu = QueriedGpu(element.get("id").lower())
        for inner in element.walk():
            key = TAGS.get(inner.tag)
            if key and not getattr(gpu, key):
                setattr(gpu, key, inner.text.strip()[:200])
        gpu.memory = _total(element)
        yield gpu


def _total(gpu: Element) -> str:
    usages = gpu.all("fb_memory_usage")
    totals = [total for usage in usages[:1] for total in usage.all("total")]
    return totals[0].text.strip()[:40] if totals else ""


def query_to_machine(facts: NvidiaQuery, gpu: Gpu) -> MachineFacts:
    """Return the GPUs, and the links that their board has.

    Raises:
        SpecError: there are too many GPUs, or their board is not known.
    """
    check_count(len(facts.gpus))
    names = tuple(f"GPU{i}" for i in range(len(facts.gpus)))
    notes = ["The file does not say how GPUs are joined; nvidia-smi topo -m does."]
    if not facts.product:
        kinds = sorted({gpu.product for gpu in facts.gpus})
        notes.append(
            f"GPUs are unlike ({', '.join(kinds)}); all are taken as {gpu.name}."
        )
    peers = board_links(names, gpu, notes)
    rates = [rate for card in facts.gpus if (rate := card.rate_gb_s)]
    if not peers.counts and not peers.ports and len(names) > 1:
        notes.append("All GPUs are assumed to be under one root complex.")
    return MachineFacts(
        gpus=names,
        peers=peers,
        relations={frozenset(pair): "PHB" for pair in itertools.combinations(names, 2)},
        port_rate_gb_s=min(rates, default=None),
        notes=tuple(notes),
    )


IMPORTERS = {
    "nvidia_smi": MachineImporter(
        sign=r"\bGPU0(?:\W|\\t){1,60}X\b",
        parse=parse,
        to_machine=to_machine,
    ),
    "nvidia_smi_q": MachineImporter(
        sign=r"(?m)={5,}NVSMI LOG={5,}|<nvidia_smi_log"
        r"|^GPU [0-9A-Fa-f]{8}:[\da-fA-F]{2}:",
        parse=parse_query,
        to_machine=query_to_machine,
        gpu_name=lambda facts: facts.product,
    ),
}
