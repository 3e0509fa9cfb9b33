"""Bandwidths and links that files leave out: by GPU, CPU and board."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from meshwright.errors import SpecError
from meshwright.imports.machines.facts import MachineFacts, PeerLinks, pairs_of
from meshwright.imports.text import whole
from meshwright.spec.gpu import Gpu

PEER_LATENCY_US = 1.5
"""Estimate: a link or switch port of NVLink, as in topologies/dgx-a100.yaml."""
PORT_LATENCY_US = 3.0
"""Estimate: the PCIe port of a GPU or NIC, as in topologies/rtx-4090-pcie-2.yaml."""
INNER_LATENCY_US = 1.0
"""Estimate: from one bridge, root or socket to the next, as in rtx-4090-pcie-8.yaml."""

SOCKET_GB_S = 10.0
"""The bandwidth that NCCL plans between Intel sockets from Skylake to Ice Lake, its
lowest figure for servers (https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.h)."""

PEER_LINKS_GB_S = {
    ("v100", "a100", "a800", "h100", "h200", "h800", "gh200"): 25.0,
    ("b200", "b300", "gb200", "gb300"): 50.0,
    ("p100",): 20.0,
    ("a6000", "3090", "a40"): 14.0625,
    ("mi300x",): 64.0,
}
"""Bandwidth of one link per direction, by words in the name of the GPU. Data sheets of
NVIDIA and AMD: bandwidth of the GPU over its number of links."""


def peer_link_gb_s(gpu: Gpu, from_file: float | None, notes: list[str]) -> float:
    """Return GB/s of one NVLink or XGMI link per direction.

    It is taken from the imported file, else from the GPU, else from the table above.

    Raises:
        SpecError: none of them has it.
    """
    if from_file is not None or gpu.peer_link_gb_s is not None:
        return float(from_file or gpu.peer_link_gb_s or 0)
    return family_value(PEER_LINKS_GB_S, "peer_link_gb_s", gpu, notes)


def family_value(
    table: dict[tuple[str, ...], float],
    field: str,
    gpu: Gpu,
    notes: list[str],
) -> float:
    """Return the entry of a table for the family of a GPU, with a note.

    Raises:
        SpecError: no word of its name is in the table.
    """
    for families, gb_s in table.items():
        if _name_words(gpu) & set(families):
            sentence = f"{field} of {gpu.name} is assumed to be {gb_s:g} GB/s"
            notes.append(f"{sentence}, as for its family: the GPU's file lacks it.")
            return gb_s
    told = f"gpu {gpu.name}: {field} is not given; expected GB/s per direction"
    raise SpecError(told)


PCIE_SHARE = 0.8
"""Estimate: share of the rate of a PCIe link that copies reach (dgx-a100.yaml)."""

PCIE_GB_S = {
    ("p100", "v100"): 12.5,
    ("a100", "a800", "a6000", "a40", "3090", "4090", "l4", "l40", "l40s"): 25.0,
    ("h20", "h100", "h200", "h800", "b200", "b300", "5090", "mi300x", "mi325x"): 50.0,
}
"""Estimate, by words in the name of the GPU: 0.8 of PCIe 3.0, 4.0 and 5.0 x16, as in
dgx-a100.yaml and dgx-h100.yaml."""


def pcie_rate_gb_s(gt_s: float, lanes: int) -> float:
    """Return the rate of a link of PCIe 3.0 to 5.0 per direction: 128 of 130 bits."""
    return gt_s * lanes / 8 * 128 / 130


LANE_GB_S = {
    "2.0": 0.5,
    "3.0": pcie_rate_gb_s(8, 1),
    "4.0": pcie_rate_gb_s(16, 1),
    "5.0": pcie_rate_gb_s(32, 1),
    "6.0": 64 / 8,
}
"""Rate of one lane per direction, by generation (PCI-SIG)."""

WIDTHS = (16, 8, 4, 2, 1)

NEAR_RATE = 0.03
"""Relative difference up to which a rate is that of a generation and width."""

BOUNCED = 15.5 / 25
"""Share of the bandwidth that is left where copies between GPUs stop in host memory:
31 GB/s both ways together between two RTX 4090 without peer access
(https://github.com/dbkinghorn/Notes 2023/NV-4090-P2P/update-P2P.md)."""

NO_PEER_ACCESS = {"3090", "4090", "5090"}
"""Cards to which NVIDIA's drivers give no peer access over PCIe
(https://github.com/tinygrad/open-gpu-kernel-modules)."""


def port_bandwidth_gb_s(machine: MachineFacts, gpu: Gpu, notes: list[str]) -> float:
    """Return GB/s that copies over a GPU's PCIe port reach per direction.

    The rate of the link in the file counts where it is lower than the GPU's; a note
    says the generation and width.

    Raises:
        SpecError: neither the GPU, the file nor the table has it.
    """
    of_gpu, rate = gpu.pcie_gb_s, machine.port_rate_gb_s
    of_file = None if rate is None else round(PCIE_SHARE * rate, 2)
    if of_file is not None and (of_gpu is None or of_file < of_gpu * (1 - NEAR_RATE)):
        gb_s, why = of_file, "the link in the file"
    elif of_gpu is not None:
        gb_s = of_gpu
        why = "the link in the file" if of_file else "the GPU's; the file has none"
    else:
        gb_s = family_value(PCIE_GB_S, "pcie_gb_s", gpu, notes)
        why = "usual for the GPU; the file has none"
    notes.append(
        f"PCIe of a GPU is taken to be as fast as {spelled(gb_s)}: {gb_s:g} GB/s per "
        f"direction ({why})."
    )
    return gb_s * _share(machine, gpu, notes)


def spelled(gb_s: float) -> str:
    """Return the generation and width whose copies reach a bandwidth: '4.0 x16'."""
    for width in WIDTHS:
        for generation, lane_gb_s in LANE_GB_S.items():
            rate = PCIE_SHARE * lane_gb_s * width
            if abs(gb_s / rate - 1) <= NEAR_RATE:
                return f"{generation} x{width}"
    return f"{gb_s / PCIE_SHARE:.3g} GB/s at {PCIE_SHARE:g} of the rate"


def _share(machine: MachineFacts, gpu: Gpu, notes: list[str]) -> float:
    """Return the share of the bandwidth that copies between GPUs keep, with a note."""
    if machine.has_peer_access or (
        machine.has_peer_access is None and not _name_words(gpu) & NO_PEER_ACCESS
    ):
        return 1.0
    why = (
        f"drivers give {gpu.name} none"
        if machine.has_peer_access is None
        else "by the file"
    )
    notes.append(
        f"GPUs have no peer access over PCIe ({why}): copies stop in host memory, at "
        f"{BOUNCED:g} of the bandwidth."
    )
    return BOUNCED


INTEL_GB_S = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))
"""By least model of family 6: Emerald Rapids, Sapphire Rapids, Skylake, older ones."""

AMD_GB_S = {23: 16.0, 25: 24.0, 26: 32.0}
"""By family: EPYC of Zen 1 and 2, of Zen 3 and 4, of Zen 5."""

OTHER_GB_S = {"arm64": 6.0, "aarch64": 6.0, "ppc64": 32.0, "ppc64le": 32.0}
"""By architecture."""

ZHAOXIN_GB_S = 6.0

_EXTENDED = {0x8F: 23, 0xAF: 25, 0xBF: 26}
"""Families of AMD as NCCL writes them: the extended family above the base, 0xF."""


class Cpu(NamedTuple):
    """A CPU as a file describes it; fields that the file lacks are empty."""

    arch: str = ""
    vendor: str = ""
    family: str = ""
    model: str = ""


def socket_gb_s(cpus: list[Cpu]) -> float | None:
    """Return the bandwidth between the sockets of these CPUs; None if not known."""
    found = {_gb_s(cpu) for cpu in cpus}
    known = {gb_s for gb_s in found if gb_s is not None}
    return min(known) if known and None not in found else None


def _gb_s(cpu: Cpu) -> float | None:
    family, model = whole(cpu.family), whole(cpu.model)
    if cpu.vendor == "GenuineIntel" and family == 6 and model is not None:
        return next(gb_s for least, gb_s in INTEL_GB_S if model >= least)
    if cpu.vendor == "AuthenticAMD" and family is not None:
        return AMD_GB_S.get(_EXTENDED.get(family, family))
    if cpu.vendor.strip() == "Shanghai":
        return ZHAOXIN_GB_S
    return OTHER_GB_S.get(cpu.arch.lower())


BRIDGED = {"pcie", "nvl", "a30", "a40", "a5000", "a6000", "3090"}
"""Words in the names of cards of which a bridge may join pairs."""

LEAST_ON_BOARD = 6
"""Fewest links of a GPU on a board: V100 has 6, cards with a bridge up to 4."""

LEAST_SWITCHED = 8
"""Fewest links of a GPU on a board with NVSwitches: A800 has 8."""

MESHED = (2, 4)
"""Numbers of GPUs that boards join directly, without a switch."""

RACKED = {"gb200", "gb300"}
"""GPUs whose links all lead to the switches of a rack, however few are in a host."""


def board_links(gpus: Sequence[str], gpu: Gpu, notes: list[str]) -> PeerLinks:
    """Return the links that the board of these GPUs has by its data sheet.

    Raises:
        SpecError: the board has links, and there are several ways to join the GPUs.
    """
    links, count = gpu.peer_links or 0, len(gpus)
    if not links or count < 2:
        return PeerLinks()
    if links < LEAST_ON_BOARD or _name_words(gpu) & BRIDGED:
        notes.append(
            f"The file shows no NVLink. A bridge may join pairs of {gpu.name}; "
            "none is drawn. nvidia-smi topo -m shows it."
        )
        return PeerLinks()
    kind = (
        "XGMI" if any(word.startswith("mi") for word in _name_words(gpu)) else "NVLink"
    )
    is_meshed = count in MESHED and not _name_words(gpu) & RACKED
    if kind == "NVLink" and links >= LEAST_SWITCHED and not is_meshed:
        notes.append(
            f"The file shows no NVLink: the {links} NVLinks of each GPU are "
            "assumed to lead to NVSwitches."
        )
        return PeerLinks(kind, ports=dict.fromkeys(gpus, links), is_explicit=True)
    each = links // (count - 1)
    if not each or (kind == "NVLink" and not is_meshed):
        raise SpecError(
            f"the file shows no {kind}, and the {links} links of {gpu.name} "
            f"can join {count} GPUs in several ways; expected nvidia-smi topo -m, or a "
            "bundled machine such as dgx-1v"
        )
    notes.append(
        f"The file shows no {kind}: {each} links are assumed between "
        f"each pair of the {count} GPUs, all {each * (count - 1)} of {links} used."
    )
    return PeerLinks(kind, dict.fromkeys(pairs_of(gpus), each), is_explicit=True)


def _name_words(gpu: Gpu) -> set[str]:
    return set(re.findall("[a-z0-9]+", gpu.name.lower()))
