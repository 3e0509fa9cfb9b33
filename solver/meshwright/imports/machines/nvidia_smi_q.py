"""`nvidia-smi -q` and `nvidia-smi -q -x`: name, memory and PCIe link of each GPU.

They do not say how GPUs are joined: the links of the board are assumed, and all GPUs
to be under one root complex.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.imports.board_links import board_links
from meshwright.imports.imported import Imported
from meshwright.imports.importer import MachineImporter
from meshwright.imports.machine_facts import MachineFacts, check_count
from meshwright.imports.machine_graph import to_graph
from meshwright.imports.pcie_ports import LANE_GB_S
from meshwright.imports.safe_xml import Element, parse_xml
from meshwright.imports.text import fail, read_lines, whole
from meshwright.spec.gpu import Gpu

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
"""By element of the XML, likewise; memory is in fb_memory_usage."""

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


def parse(text: str, name: str) -> NvidiaQuery:
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


def to_topology(facts: NvidiaQuery, gpu: Gpu, gpu_name: str) -> Imported:
    """Return the machine as nodes and links.

    Raises:
        SpecError: there are too many GPUs, or their board is not known.
    """
    check_count(len(facts.gpus))
    names = tuple(f"GPU{i}" for i in range(len(facts.gpus)))
    notes = ["The file does not say how GPUs are joined; nvidia-smi topo -m does."]
    if not facts.product:
        kinds = sorted({gpu.product for gpu in facts.gpus})
        notes.append(
            f"GPUs are unlike ({', '.join(kinds)}); all are taken as {gpu_name}."
        )
    peers = board_links(names, gpu, notes)
    rates = [rate for card in facts.gpus if (rate := card.rate_gb_s)]
    if not peers.counts and not peers.ports and len(names) > 1:
        notes.append("All GPUs are assumed to be under one root complex.")
    machine = MachineFacts(
        gpus=names,
        peers=peers,
        relations={frozenset(pair): "PHB" for pair in itertools.combinations(names, 2)},
        port_rate_gb_s=min(rates, default=None),
        notes=tuple(notes),
    )
    return to_graph(machine, gpu, gpu_name)


IMPORTER = MachineImporter(
    sign=r"(?m)={5,}NVSMI LOG={5,}|<nvidia_smi_log|^GPU [0-9A-Fa-f]{8}:[\da-fA-F]{2}:",
    parse=parse,
    to_topology=to_topology,
    gpu_name=lambda facts: facts.product,
)
