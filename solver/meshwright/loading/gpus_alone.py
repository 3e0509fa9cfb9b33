"""GPUs without a machine: `4xRTX3090`, `{gpu: rtx-4090, count: 2}`, lists of nodes.

What joins them, and what host they sit in, is what is usual for the GPU: the machine of
its vendor, or cards in the PCIe slots of a workstation or server. A note says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import gcd
from typing import Any, NamedTuple

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.machines.defaults import (
    BOUNCED,
    NO_PEER_ACCESS,
    PORT_LATENCY_US,
    spelled,
)
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.gpu import Gpu
from meshwright.surface import option

REFERENCES = ("dgx", "mi", "gb")
"""How names of vendors' machines start, after which others are built."""

MOST_CARDS = 8
"""Most cards of one host."""


class Board(NamedTuple):
    """How GPUs that are no cards are joined in their host."""

    level: str
    told: str
    most: int
    """GPUs of one host."""


BOARDS = {
    "sxm": Board("nvlink", "NVLink", 8),
    "gh200": Board("nvlink", "NVLink", 4),
    "mi250x": Board("xgmi", "Infinity Fabric", 8),
    "mi300a": Board("xgmi", "Infinity Fabric", 4),
    "gaudi3": Board("ethernet", "Ethernet of the board", 8),
}
"""By words of a GPU's name: four superchips of Alps and JUPITER, eight dies of
Frontier, four MI300A of El Capitan, the HLB-325 board of Intel."""

CARD_HOST_GIB = 64
"""Estimate: host memory beside each card, as in topologies/rtx-4090-pcie-2.yaml."""

CARD_HOST_GB_S = 204.8
"""Eight channels of DDR4-3200, as in topologies/rtx-4090-pcie-2.yaml."""

HOST_GIB = "host_gib"
"""The field of a cluster with the memory that a list of nodes has of each host."""

_COUNTED = re.compile(
    r"\s*(\d{1,6})\s*(?:[x*\N{MULTIPLICATION SIGN}]|\s)\s*(\S.{0,80})"
)


def counted_gpus(text: str) -> tuple[int, str] | None:
    """Return the number and the GPU of text such as 4xRTX3090; None of other text."""
    found = _COUNTED.fullmatch(text[:100])
    if found is None or not 0 < int(found[1]) <= catalog.MOST_GPUS:
        return None
    try:
        return int(found[1]), catalog.bundled(catalog.GPUS, found[2].strip()).stem
    except SpecError as error:
        if " may be " in str(error):  # A GPU, of which there are several.
            raise
        return None


_CARD = re.compile(
    r"^(?:\|[ \t]+\d+[ \t]+(?P<table>\S.{1,40}?)[ \t]+(?:On|Off|N/A)[ \t]+\|"
    r"|[ \t]*GPU \d+: (?P<list>[^(\n]{1,60}?)[ \t]*\(UUID"
    r"|[ \t]*\d+,[ \t]*(?P<csv>[^,\n]{1,60}?),[ \t]*\d+(?:[ \t]*MiB)?[ \t]*(?:,|$))",
    re.MULTILINE,
)
"""A GPU in the table of `nvidia-smi`, in `nvidia-smi -L`, and in
`nvidia-smi --query-gpu=index,name,memory.total --format=csv`."""

_SLICES = re.compile(r"^[ \t]+MIG \d{1,2}g\.|^\|[ \t]+MIG devices:", re.MULTILINE)
"""The devices of MIG in `nvidia-smi -L` and in the table of `nvidia-smi`."""


def listed_cards(text: str, place: str, gpu: str | None) -> tuple[int, str] | None:
    """Return the number and the GPU of a list of cards; None of other text.

    Which GPU they are may be said, since tables cut long names short.

    Raises:
        SpecError: the cards are of several kinds, of one that is not bundled, or cut.
    """
    cards = [found[found.lastgroup or 0] for found in _CARD.finditer(text)]
    if cards and _SLICES.search(text):
        told = f"lists slices of a GPU (MIG), which are not bundled; {catalog.SLICE}"
        raise SpecError(f"{place}: {told}, by {option('gpu')} and {option('count')}")
    if gpu is not None or not cards:
        return (len(cards), gpu) if gpu is not None and cards else None
    try:
        kinds = {name: catalog.bundled(catalog.GPUS, name).stem for name in {*cards}}
    except SpecError as error:
        raise SpecError(f"{place}: {error}") from None
    if len(of := {*kinds.values()}) > 1:
        told = f"lists GPUs of several kinds, {' and '.join(sorted(of))}"
        raise SpecError(f"{place}: {told}; unlike machines are cluster.parts of a spec")
    return len(cards), of.pop()


BESIDE_GPUS = {"gpu", "count", "per_host", HOST_GIB, "host", "scale_out"}
"""Fields of a cluster that names GPUs alone; others say what joins them."""


def named_cluster(named: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a cluster, whose topology may be GPUs such as 4xRTX3090.

    These are all of its GPUs, or those of each host where it counts hosts.

    Raises:
        SpecError: several GPUs go by the name.
    """
    cluster = {"topology": named} if isinstance(named, str) else {**named}
    topology, count = cluster.get("topology"), cluster.get("count", 1)
    is_alone = cluster.keys() - {"topology"} <= BESIDE_GPUS - {"gpu", "per_host"}
    if not isinstance(topology, str) or type(count) is not int or not is_alone:
        return cluster
    gpus = counted_gpus(topology)
    if gpus is None:
        return cluster
    del cluster["topology"]
    return {**cluster, **on_hosts(*gpus, count)}


def on_hosts(gpus: int, gpu: str, hosts: int) -> dict[str, Any]:
    """Return the fields of a cluster for so many GPUs on each of some hosts."""
    per_host = {"per_host": gpus} if hosts > 1 else {}
    return {"gpu": gpu, "count": gpus * hosts, **per_host}


def usual_machine(
    gpu: Gpu, count: int, per_host: int | None = None, *, is_joined: bool = False
) -> tuple[dict[str, Any], int, str]:
    """Return the machine that some GPUs usually sit in, how many of it, and a note.

    Args:
        gpu: One of the GPUs.
        count: All of them.
        per_host: How many sit in one host; the most that fit evenly if not known.
        is_joined: Whether the network between hosts is known, so that none is assumed.

    Raises:
        SpecError: the GPU has no speed of its port.
    """
    reference, board = _reference(gpu.name), _board(gpu)
    if reference:
        most = int(reference["levels"][0]["size"])
    else:
        most = board.most if board else MOST_CARDS
    size = per_host or max(n for n in range(1, most + 1) if count % n == 0)
    hosts = count // size
    if reference and size <= most:
        name = str(reference["name"])
        level = {**reference["levels"][0], "size": size}
        machine = {**reference, "levels": [level], **_part_of_host(reference, size)}
        gpus = f"{size:,} GPU" + "s" * (size > 1)
        note = f"assumed {gpus} of a {name}" if size < most else f"assumed {name}"
    else:
        machine, note = _cards(gpu, size, board)
        if hosts > 1 and not is_joined:
            uplink = "per_gpu" if board else "shared"
            machine["scale_out"] = network = network_of(gpu.name) | {"uplink": uplink}
            note += f", {network['gb_s']} a {'GPU' if board else 'host'} between hosts"
    note += f" for {count:,} x {gpu.name}"
    return machine, hosts, note + ("" if hosts == 1 else f", {hosts:,} hosts of {size}")


def _reference(gpu: str) -> dict[str, Any] | None:
    """Return the vendor's machine with a GPU, if one level of links joins it."""
    for name in catalog.names("topologies/machines"):
        if not name.startswith(REFERENCES):
            continue
        fields = read_yaml(catalog.bundled("topologies", name)).data
        if fields["gpu"] == gpu and len(fields.get("levels", ())) == 1:
            return dict(fields)
    return None


def _part_of_host(reference: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the host of a machine of which some GPUs are used, where trays divide it.

    Two GPUs of GB200 NVL72 are two of the four in one compute tray.
    """
    host = reference.get("host", {})
    return {"host": {**host, "gpus": gcd(size, host["gpus"])}} if "gpus" in host else {}


def _board(gpu: Gpu) -> Board | None:
    """Return the board that joins GPUs of a kind; None of cards in slots."""
    words = re.findall("[a-z0-9]+", gpu.name.lower())
    boards = [BOARDS[word] for word in words if word in BOARDS]
    return boards[0] if boards and gpu.peer_links and gpu.peer_link_gb_s else None


def _cards(gpu: Gpu, size: int, board: Board | None) -> tuple[dict[str, Any], str]:
    """Return a host with cards in its slots, or a board without a known machine."""
    if gpu.pcie_gb_s is None:
        raise SpecError(
            f"gpu: {printable(gpu.name)}: pcie_gb_s: missing; expected GB/s"
        )
    words = set(re.findall("[a-z0-9]+", gpu.name.lower()))
    share = BOUNCED if words & NO_PEER_ACCESS else 1.0
    gb_s = round(gpu.pcie_gb_s * share, 2)
    told = f"PCIe {spelled(gpu.pcie_gb_s)}"
    told += ", no peer access" if share < 1 else ""
    if board and gpu.peer_links and gpu.peer_link_gb_s:
        gb_s, told = gpu.peer_links * gpu.peer_link_gb_s, board.told
    level = {"name": board.level if board else "pcie", "size": size, "gb_s": gb_s}
    level |= {"latency_us": PORT_LATENCY_US, "uplink": "per_gpu"}
    machine: dict[str, Any] = {
        "name": f"{gpu.name}-host",
        "gpu": gpu.name,
        "levels": [level],
    }
    if gpu.shares_memory:
        return machine, f"assumed {told}"
    memory_gib = CARD_HOST_GIB * size
    host = {"memory_gib": memory_gib, "pcie_gb_s": gpu.pcie_gb_s}
    machine["host"] = host | {"memory_gb_s": CARD_HOST_GB_S}
    return machine, f"assumed {told} and {memory_gib} GiB of host memory"


def network_of(gpu: str) -> dict[str, Any]:
    """Return the network that joins copies of a machine: one port for every NIC."""
    name = gpu.lower()
    found = (rate for rate, named in NIC_GBIT_S.items() if re.search(named, name))
    speed = f"{next(found, 100)} Gbit/s"
    return {"name": "network", "gb_s": speed, "latency_us": 2.5, "uplink": "per_nic"}


NIC_GBIT_S = {
    400: r"[bh][1238]00|h20-|gb300|mi3[0-9]{2}x",
    200: "a100|a800|mi250x|mi300a",
    600: "gaudi3",
}
"""Rate of a NIC beside GPUs with such names; others are taken to have 100.

Of machines of H100 and later, and of A100 (NVIDIA, datasheets of DGX H100 and A100); of
MI250X and MI300A (HPE, the Slingshot of Frontier and El Capitan); of Gaudi 3 three
ports of 200 (Intel Gaudi 3 White Paper)."""


class Listed(NamedTuple):
    """The GPUs of one kind in a list of nodes."""

    gpu: str
    """As the list names it; empty if it does not."""
    gpus: int
    """GPUs of all nodes together."""
    per_host: int
    instance: str
    """The instance type of a cloud; empty where it is not the same of all nodes."""
    host_gib: int | None
    """Memory of the host that has least; None where the list does not say."""

    @property
    def hosts(self) -> int:
        """Return the number of nodes."""
        return self.gpus // self.per_host


def in_service(facts: Any, notes: list[str]) -> Any:
    """Return the nodes of a list that take jobs; all of them where none does.

    `notes` gets the names of those that are left out.
    """
    down = getattr(facts, "out_of_service", ())
    if not down or not (up := facts.in_service()).nodes:
        return facts
    named = ", ".join(map(printable, down[:4]))
    more = f" and {len(down) - 4:,} more" if len(down) > 4 else ""
    notes.append(f"left out: {named}{more}, which {facts.name} has as out of service")
    return up


def listed_gpus(facts: Any, place: str, wanted: str | None) -> Listed:
    """Return the GPUs in a list of nodes, of Slurm, Kubernetes or Ray.

    Of several kinds those count that are the GPU that is `wanted`.

    Raises:
        SpecError: there are no GPUs, of several kinds, or not as many on each node.
    """
    by_type: Mapping[str, int] = facts.gpus_by_type
    kinds = [name for name, count in by_type.items() if count]
    if len(kinds) > 1 and wanted is not None:
        kinds = [name for name in kinds if _may_be(name, wanted)] or kinds
    if len(kinds) != 1:
        told = " and ".join(map(printable, kinds[:4])) or "none"
        raise SpecError(
            f"{place}: expected GPUs of one kind, not {told}; say {option('gpu')}"
        )
    (kind,) = kinds
    total, hosts = by_type[kind], _nodes_with(facts, kind)
    if not hosts or total % hosts:
        told = f"{total:,} GPUs on {hosts:,} nodes; expected as many on each"
        raise SpecError(f"{place}: {told}")
    rows = facts.nodes if isinstance(facts.nodes, tuple) else ()
    instances = {str(node.instance) for node in rows if _has(node, kind)}
    instance = instances.pop() if len(instances) == 1 else ""
    sizes = [node.host_mib for node in rows if _has(node, kind) and node.host_mib]
    least = min(sizes, default=getattr(facts, "host_mib", None) or 0)
    host_gib = least // 1024 or None
    named = "" if kind == "gpu" else kind
    return Listed(named, total, total // hosts, instance, host_gib)


def _may_be(name: str, gpu: str) -> bool:
    """Return whether a list may mean a bundled GPU: Slurm's `a100` is a family."""
    return catalog.meant(catalog.GPUS, name) == gpu or name.lower() in gpu.split("-")


def _nodes_with(facts: Any, kind: str) -> int:
    """Return the number of nodes with GPUs of a kind."""
    if isinstance(facts.nodes, tuple):
        return sum(_has(node, kind) for node in facts.nodes)
    by_node: Mapping[str, Mapping[str, int]] | None = getattr(facts, "gpus", None)
    if isinstance(by_node, Mapping):
        return sum(bool(gpus.get(kind)) for gpus in by_node.values())
    return int(facts.nodes_by_type.get(kind) or facts.nodes or 1)


def listed_hosts(facts: Any) -> int:
    """Return the number of hosts of a list that need not have GPUs."""
    for name in ("nodes", "slots", "guids"):
        hosts = getattr(facts, name, None)
        if hosts is not None:
            return hosts if isinstance(hosts, int) else len(hosts)
    return 1


def _has(node: Any, kind: str) -> bool:
    """Return whether a node of Slurm or Kubernetes has GPUs of a kind."""
    if isinstance(node.gpus, Mapping):
        return bool(node.gpus.get(kind))
    return bool(node.gpus and node.product == kind)
