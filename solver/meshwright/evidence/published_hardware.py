"""Translates the terms of publications for hardware into a cluster."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.evidence.published_terms import (
    VOCABULARY,
    Assumptions,
    Machine,
    Unpriced,
    checked,
)
from meshwright.evidence.runs import RunHardware
from meshwright.gpu_names import spoken
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.base import divisors
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.topology import USUAL_BUS_SHARE

FIELD = "hardware.inter_node"

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
        return _spelled(name)
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


def _spelled(name: str) -> Gpu:
    """Return the GPU that a spec means by a name."""
    try:
        path = catalog.bundled("topologies/gpus", name)
    except SpecError:
        told = f"hardware.gpu: {name} is not in topologies/gpus"
        raise Unpriced(told) from None
    return Gpu.model_validate(read_yaml(path).data)


def _memory(entry: str) -> int:
    return spoken(entry).memory_gb or 0


def find_cluster(
    hardware: RunHardware, assumed: Assumptions, is_on_host: bool = False
) -> Cluster:
    """Return the cluster of a run; what is not published is noted as assumed.

    `is_on_host` says whether some of a run lives on the hosts.

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
    if is_on_host:
        topology["host"] = _host(gpu, node, hardware, inside)
    return checked(Cluster, "cluster", {"topology": topology})


HOST_GIB = 2048
"""Memory of a host, of which a run that was made had enough."""


def _host(
    gpu: Gpu, node: Machine, hardware: RunHardware, gpus: int
) -> dict[str, object]:
    """Return the host of a run's GPUs; the GPUs of its machine share its bandwidth."""
    return {
        "gpus": gpus,
        "memory_gib": HOST_GIB,
        "pcie_gb_s": gpu.pcie_gb_s or node.gb_s,
        "memory_gb_s": hardware.host_gb_s or node.host_gb_s * gpus,
    }


def _variant(usual: Gpu, hardware: RunHardware) -> Gpu:
    """Return a GPU with the memory and the power limit that a run says it had."""
    names = ("memory_gib", "memory_gb_s", "power_limit_w")
    said = hardware.model_dump(include={*names}, exclude_none=True)
    return checked(Gpu, "hardware", usual.model_dump() | said) if said else usual


def find_node(gpu: str) -> Machine:
    """Return the reference machine of a bundled GPU.

    Raises:
        Unpriced: no machine is known for the GPU.
    """
    for start, node in VOCABULARY.hardware.machines.items():
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


def _link_gb_s(hardware: RunHardware, node: Machine) -> float:
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
        "latency_us": VOCABULARY.hardware.latency_us[name],
        "uplink": uplink,
    }


def _bus_share(hardware: RunHardware) -> float:
    """Return the share of its rate that the network reaches, by its name."""
    text = hardware.inter_node or ""
    shares = VOCABULARY.hardware.network_shares
    named = (share for word, share in shares.items() if word in text)
    return next(named, USUAL_BUS_SHARE)


def _network(
    hardware: RunHardware, node: Machine, per_node: int, assumed: Assumptions
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
    is_per_gpu = "per GPU" in text
    if found := _RATE.search(text):
        gbit_s = float(found[1]) * (1000 if found[2] == "T" else 1)
        return gbit_s, "per_gpu" if is_per_gpu else "shared"
    if found := _GENERATION.search(text):
        gbit_s = VOCABULARY.hardware.adapter_gbit_s[found[0]]
        return gbit_s if is_per_gpu else assumed.value(FIELD, gbit_s), "per_gpu"
    if node.network_gbit_s is None:
        raise Unpriced(f"{FIELD}: not published")
    return assumed.value(FIELD, node.network_gbit_s), "per_gpu"
