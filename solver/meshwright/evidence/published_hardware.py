"""Translates the terms of publications for hardware into a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from meshwright import catalog
from meshwright.evidence.published_terms import Assumptions, Unpriced, checked
from meshwright.evidence.runs import RunHardware
from meshwright.reading.yaml_text import read_yaml
from meshwright.spec.base import divisors
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.topology import USUAL_BUS_SHARE

LATENCY_US = {"nvlink": 1.5, "xgmi": 1.5, "pcie": 2.0, "network": 2.0}
"""Latency of one link, as in topologies/dgx-a100.yaml and a100-pcie-2.yaml."""


@dataclass(frozen=True)
class ReferenceNode:
    """The reference machine of a GPU, for what a publication leaves out."""

    link: str
    gb_s: float
    """Bandwidth of the uplink of one GPU inside the machine, per direction."""
    network_gbit_s: float | None = None
    """Network of one GPU in the machine of its vendor; None where there is none."""


NODES = {
    # 6 links x 25 GB/s (NVIDIA V100 datasheet); DGX-1: 4 EDR adapters for 8 GPUs
    "v100-sxm": ReferenceNode("nvlink", 150, 50),
    # 12 links x 25 GB/s (NVIDIA A100 datasheet); DGX A100: 8 HDR adapters
    "a100-sxm": ReferenceNode("nvlink", 300, 200),
    # 400 GB/s both ways, the export variant (NVIDIA A800 datasheet)
    "a800-sxm": ReferenceNode("nvlink", 200, 200),
    # 18 links x 25 GB/s (NVIDIA H100 and H200 datasheets); DGX H100: 8 NDR adapters
    "h100-sxm": ReferenceNode("nvlink", 450, 400),
    "h200-sxm": ReferenceNode("nvlink", 450, 400),
    # 18 links x 50 GB/s (NVIDIA HGX specifications); ConnectX-7 in DGX B200 and GB200
    "b200-sxm": ReferenceNode("nvlink", 900, 400),
    "gb200": ReferenceNode("nvlink", 900, 400),
    # the same links; an 800 Gbit/s ConnectX-8 per GPU (NVIDIA DGX B300 and GB300)
    "b300-sxm": ReferenceNode("nvlink", 900, 800),
    "gb300": ReferenceNode("nvlink", 900, 800),
    # One link to each of 7 peers, which only a group of all 8 can fill: 64 GB/s each,
    # 76.8 on the MI350 series (AMD data sheets); 8 adapters of 400 Gbit/s in Azure's
    # ND MI300X v5 and in AMD's cluster reference guides
    "mi300x": ReferenceNode("xgmi", 7 * 64, 400),
    "mi325x": ReferenceNode("xgmi", 7 * 64, 400),
    "mi355x": ReferenceNode("xgmi", 7 * 76.8, 400),
    # x16: 16 GT/s x 16 lanes x 128/130 / 8 for PCIe 4, half that for 3, twice for 5
    # (PCI-SIG)
    "v100-pcie": ReferenceNode("pcie", 15.75),
    "a100-pcie": ReferenceNode("pcie", 31.5),
    "a30": ReferenceNode("pcie", 31.5),
    "a10g": ReferenceNode("pcie", 31.5),
    "a5000": ReferenceNode("pcie", 31.5),
    "a40": ReferenceNode("pcie", 31.5),
    "a6000": ReferenceNode("pcie", 31.5),
    "l4": ReferenceNode("pcie", 31.5),
    "l40s": ReferenceNode("pcie", 31.5),
    "rtx-6000-ada": ReferenceNode("pcie", 31.5),
    "rtx-3090": ReferenceNode("pcie", 31.5),
    "rtx-4090": ReferenceNode("pcie", 31.5),
    "h100-pcie": ReferenceNode("pcie", 63),
    "h100-nvl": ReferenceNode("pcie", 63),
    "rtx-5090": ReferenceNode("pcie", 63),
}
"""Reference machines by the start of the name of the GPU."""

NETWORK_SHARES = {
    # all-gathers over two a3-megagpu-8g: 188.5 of 200 GB/s (cluster-toolkit examples)
    "TCPXO": 0.94,
    # the same over two a3-highgpu-8g: 50 (dstack) to 71 (cluster-toolkit) of 100 GB/s
    "TCPX": 0.6,
    # four A100 nodes of Jean Zay: all-reduces at 15 to 42 Gbit/s of data, 81 on the
    # links, of 4 x 100 (bigscience-workshop, experiments/bandwidth)
    "Omni-Path": 0.2,
    # all-reduces over four nodes: 365 (p5en) and 382 GB/s (p6-b200) of 400
    # (stas00/ml-engineering, network)
    "EFA": 0.91,
    # gradients of the 530B model over eight DGX A100 nodes each: 1.32 s for 13.2 GB a
    # GPU (Korthikanti et al. 2022, section 6.3), 10 of 25 GB/s; a benchmark alone on
    # the fabric has 24 (NVIDIA GTC 2024)
    "HDR": 0.45,
}
"""Share of the rate of a network that collectives reach, by a word in its name. The
usual share stands for all others: InfiniBand NDR has 0.95 in a benchmark on two to
eight nodes (coreweave/nccl-tests: 387 of 400 GB/s), RoCE 0.82 (cluster-toolkit: 329 of
400), and training less of it."""

FIELD = "hardware.inter_node"

GENERATION_GBIT_S = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
"""Rate of one InfiniBand adapter with four lanes (InfiniBand Trade Association
roadmap)."""

_DECIMAL = r"(\d{1,9}(?:\.\d{1,9})?)"
_BOTH_WAYS = re.compile(rf"{_DECIMAL} GB/s")
_ADAPTERS = re.compile(r"(\d{1,9})\s{0,9}x\s{0,9}(?:[EHNX]DR)?\s{0,9}(\d{1,9})")
_RATE = re.compile(rf"{_DECIMAL} ?([GT])(?:b/s|bit/s|bps)")
_GENERATION = re.compile(r"[EHNX]DR")


def find_gpu(name: str) -> Gpu:
    """Return the bundled GPU of a published name such as 'A100-80GB-SXM'.

    Raises:
        Unpriced: no bundled GPU has this name.
    """
    words = set(re.split(r"[\s_-]+", name.lower()))
    aliases = {"sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "pcie4": "pcie"}
    words = {aliases.get(word, word) for word in words}
    known = {entry: set(entry.split("-")) for entry in catalog.names("topologies/gpus")}
    close = [entry for entry, parts in known.items() if words <= parts]
    if not close:
        raise Unpriced(f"hardware.gpu: {name} is not in topologies/gpus")
    # The fewest further words, then the usual SXM board, then the larger memory.
    best = min(
        close,
        key=lambda entry: (
            len(known[entry] - words),
            "sxm" not in entry,
            -_memory(entry),
        ),
    )
    path = catalog.locate("topologies/gpus", best, Path())
    return Gpu.model_validate(read_yaml(path).data)


def _memory(entry: str) -> int:
    found = re.search(r"(\d+)gb", entry)
    return int(found[1]) if found else 0


def find_cluster(hardware: RunHardware, assumed: Assumptions) -> Cluster:
    """Return the cluster of a run; what is not published is noted as assumed.

    Raises:
        Unpriced: the GPU or its network is unknown, or a rate is out of range.
    """
    gpu = _variant(find_gpu(hardware.gpu), hardware)
    node = find_node(gpu.name)
    inside = _inside(hardware, assumed)
    levels = [_level(node.link, inside, _link_gb_s(hardware, node), "per_gpu")]
    if hardware.n_gpus > inside:
        gbit_s, uplink = _network(hardware, node, inside, assumed)
        level = _level("network", hardware.n_gpus // inside, gbit_s / 8, uplink)
        levels.append({**level, "bus_share": _bus_share(hardware)})
    topology = {"name": hardware.gpu, "gpu": gpu, "levels": levels}
    return checked(Cluster, "cluster", {"topology": topology})


def _variant(usual: Gpu, hardware: RunHardware) -> Gpu:
    """Return a GPU with the memory and the power limit that a run says it had."""
    names = ("memory_gib", "memory_gb_s", "power_limit_w")
    said = hardware.model_dump(include={*names}, exclude_none=True)
    return checked(Gpu, "hardware", usual.model_dump() | said) if said else usual


def find_node(gpu: str) -> ReferenceNode:
    """Return the reference machine of a bundled GPU.

    Raises:
        Unpriced: no machine is known for the GPU.
    """
    for start, node in NODES.items():
        if gpu == start or gpu.startswith(start + "-"):
            return node
    raise Unpriced(f"hardware.gpu: no node of {gpu} is known")


def _inside(hardware: RunHardware, assumed: Assumptions) -> int:
    """Return the GPUs that a run uses of each node, equally many.

    For instance 64 of the 72 GPUs of an NVL72 rack, for a run on 256 GPUs.
    """
    most = hardware.gpus_per_node or assumed.value("hardware.gpus_per_node", 8)
    inside = max(n for n in divisors(hardware.n_gpus) if n <= most)
    if inside < min(most, hardware.n_gpus):
        assumed.value("hardware.gpus_per_node (used)", inside)
    return inside


def _link_gb_s(hardware: RunHardware, node: ReferenceNode) -> float:
    """Return the rate of a GPU inside its node, GB/s per direction.

    Published rates sum both directions, as vendors quote them.
    """
    found = _BOTH_WAYS.search(hardware.intra_node or "")
    return float(found[1]) / 2 if found else node.gb_s


def _level(name: str, size: int, gb_s: float, uplink: str) -> dict[str, object]:
    return {
        "name": name,
        "size": size,
        "gb_s": gb_s,
        "latency_us": LATENCY_US[name],
        "uplink": uplink,
    }


def _bus_share(hardware: RunHardware) -> float:
    """Return the share of its rate that the network reaches, by its name."""
    text = hardware.inter_node or ""
    named = (share for word, share in NETWORK_SHARES.items() if word in text)
    return next(named, USUAL_BUS_SHARE)


def _network(
    hardware: RunHardware, node: ReferenceNode, per_node: int, assumed: Assumptions
) -> tuple[float, str]:
    """Return the rate of an uplink, Gbit/s, and whether each GPU has one.

    A rate is of one GPU where the text says "per GPU", else of all adapters of a node.
    """
    text = hardware.inter_node or ""
    if found := _ADAPTERS.search(text):
        adapters, gbit_s = int(found[1]), float(found[2])
        per_gpu = adapters // per_node
        return (
            (per_gpu * gbit_s, "per_gpu") if per_gpu else (adapters * gbit_s, "shared")
        )
    is_own = "per GPU" in text
    if found := _RATE.search(text):
        gbit_s = float(found[1]) * (1000 if found[2] == "T" else 1)
        return gbit_s, "per_gpu" if is_own else "shared"
    if found := _GENERATION.search(text):
        gbit_s = GENERATION_GBIT_S[found[0]]
        return gbit_s if is_own else assumed.value(FIELD, gbit_s), "per_gpu"
    if node.network_gbit_s is None:
        raise Unpriced(f"{FIELD}: not published")
    return assumed.value(FIELD, node.network_gbit_s), "per_gpu"
