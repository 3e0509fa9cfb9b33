"""From the words that publications use for hardware to a cluster."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.evidence.assume import Assumed, Unpriced
from meshwright.evidence.run import RunHardware
from meshwright.spec.cluster import Cluster, Gpu
from meshwright.spec.source import read_yaml

NVLINK_GB_S = {"v100": 150, "a100": 300, "a800": 200, "h100": 450, "h200": 450}
"""Per GPU and direction, by the vendor's rating of NVLink 2, 3 and 4."""

NETWORK_GBIT_S = {"v100": 100, "a100": 200, "a800": 200, "h100": 400, "h200": 400}
"""Per GPU: the adapters of NVIDIA's reference machines of the time."""

LATENCY_US = {"nvlink": 1.5, "network": 2.0}
"""Of one link: as in topologies/dgx-a100.yaml."""

_ADAPTERS = re.compile(r"(\d+)\s*x\s*(?:EDR|HDR|NDR)?\s*(\d+)")
_PER_NODE = re.compile(r"(\d+)\s*Gb/s per node")
_PER_GPU = re.compile(r"(\d+)\s*(?:Gb/s)?\s*per GPU")


def find_gpu(name: str) -> Gpu:
    """Return the catalogue's GPU for a published name such as 'A100-80GB-SXM'.

    Raises:
        Unpriced: the catalogue has no such GPU.
    """
    words = set(re.split(r"[\s_-]+", name.lower()))
    aliases = {"sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "pcie4": "pcie"}
    words = {aliases.get(word, word) for word in words}
    known = {entry: set(entry.split("-")) for entry in catalog.names("topologies/gpus")}
    close = [entry for entry, parts in known.items() if words <= parts]
    if not close:
        raise Unpriced(f"hardware.gpu: {name} is not in topologies/gpus")
    # What is left unsaid is the least, then the usual SXM board, then the large memory.
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


def find_cluster(hardware: RunHardware, assumed: Assumed) -> Cluster:
    """Return the cluster of a run; what was not published is noted as assumed.

    Raises:
        Unpriced: the GPU is unknown, or nodes are not full.
    """
    gpu = find_gpu(hardware.gpu)
    family = gpu.name.split("-")[0]
    if family not in NVLINK_GB_S:
        raise Unpriced(f"hardware.gpu: no node of {gpu.name} is known")
    per_node = hardware.gpus_per_node or assumed.value("hardware.gpus_per_node", 8)
    inside = min(per_node, hardware.n_gpus)
    if hardware.n_gpus % inside:
        raise Unpriced(f"hardware.n_gpus: {hardware.n_gpus} do not fill nodes")
    levels = [_level("nvlink", inside, NVLINK_GB_S[family], "per_gpu")]
    if hardware.n_gpus > inside:
        gbit_s, uplink = _network(hardware, family, inside, assumed)
        levels.append(_level("network", hardware.n_gpus // inside, gbit_s / 8, uplink))
    topology = {"name": hardware.gpu, "gpu": gpu, "levels": levels}
    try:
        return Cluster.model_validate({"topology": topology})
    except ValueError as error:
        raise SpecError(str(error)) from None


def _level(name: str, size: int, gb_s: float, uplink: str) -> dict[str, object]:
    return {
        "name": name,
        "size": size,
        "gb_s": gb_s,
        "latency_us": LATENCY_US[name],
        "uplink": uplink,
    }


def _network(
    hardware: RunHardware, family: str, per_node: int, assumed: Assumed
) -> tuple[float, str]:
    """Return the rate of an uplink, Gbit/s, and whether GPUs have one each."""
    text = hardware.inter_node or ""
    if found := _PER_GPU.search(text):
        return float(found[1]), "per_gpu"
    if found := _ADAPTERS.search(text):
        adapters, gbit_s = int(found[1]), float(found[2])
        has_own = adapters >= per_node
        return (gbit_s, "per_gpu") if has_own else (adapters * gbit_s, "shared")
    if found := _PER_NODE.search(text):
        return float(found[1]), "shared"
    return float(
        assumed.value("hardware.inter_node", NETWORK_GBIT_S[family])
    ), "per_gpu"
