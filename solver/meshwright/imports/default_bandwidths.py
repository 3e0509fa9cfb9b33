"""Bandwidths and latencies for what files leave out: by GPU, else refused."""

from __future__ import annotations

import re

from meshwright.errors import SpecError
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

PCIE_SHARE = 0.8
"""Estimate: share of the rate of a PCIe link that copies reach (dgx-a100.yaml)."""

PCIE_GB_S = {
    ("p100", "v100"): 12.5,
    ("a100", "a800", "a6000", "a40", "3090", "4090", "l4", "l40s"): 25.0,
    ("h100", "h200", "h800", "b200", "b300", "5090", "mi300x", "mi325x"): 50.0,
}
"""Estimate, by words in the name of the GPU: 0.8 of PCIe 3.0, 4.0 and 5.0 x16, as in
dgx-a100.yaml and dgx-h100.yaml."""


def peer_link_gb_s(
    gpu: Gpu, gpu_name: str, from_file: float | None, notes: list[str]
) -> float:
    """Return GB/s of one NVLink or XGMI link per direction.

    It is taken from the imported file, else from the GPU, else from the table above.

    Raises:
        SpecError: none of them has it.
    """
    if from_file is not None or gpu.peer_link_gb_s is not None:
        return float(from_file or gpu.peer_link_gb_s or 0)
    return _from_table(PEER_LINKS_GB_S, "peer_link_gb_s", gpu, gpu_name, notes)


def pcie_gb_s(
    gpu: Gpu, gpu_name: str, rate_gb_s: float | None, notes: list[str]
) -> float:
    """Return GB/s that copies over a GPU's PCIe port reach per direction.

    Args:
        gpu: The GPU; its `pcie_gb_s` is preferred.
        gpu_name: The name to look up in the table, where nothing else is known.
        rate_gb_s: The rate of the PCIe link, where the file has it.
        notes: Gets a note on what was assumed.

    Raises:
        SpecError: neither the GPU, the file nor the table has it.
    """
    if gpu.pcie_gb_s is not None:
        return gpu.pcie_gb_s
    if rate_gb_s is not None:
        gb_s = round(PCIE_SHARE * rate_gb_s, 2)
        sentence = f"pcie_gb_s is assumed to be {gb_s:g} GB/s, {PCIE_SHARE:g} of the"
        notes.append(f"{sentence} {rate_gb_s:g} GB/s of the link in the file.")
        return gb_s
    return _from_table(PCIE_GB_S, "pcie_gb_s", gpu, gpu_name, notes)


def _from_table(
    table: dict[tuple[str, ...], float],
    field: str,
    gpu: Gpu,
    gpu_name: str,
    notes: list[str],
) -> float:
    spoken = set(re.findall("[a-z0-9]+", f"{gpu_name} {gpu.name}".lower()))
    for families, gb_s in table.items():
        if spoken & set(families):
            sentence = f"{field} of {gpu_name} is assumed to be {gb_s:g} GB/s"
            notes.append(f"{sentence}, as for its family: the GPU's file lacks it.")
            return gb_s
    raise SpecError(
        f"gpu {gpu_name}: {field} is not given; expected GB/s per direction"
    )
