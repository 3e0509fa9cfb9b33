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
    return family_value(PEER_LINKS_GB_S, "peer_link_gb_s", gpu, gpu_name, notes)


def family_value(
    table: dict[tuple[str, ...], float],
    field: str,
    gpu: Gpu,
    gpu_name: str,
    notes: list[str],
) -> float:
    """Return what a table has for the family of a GPU, with a note.

    Raises:
        SpecError: no word of its name is in the table.
    """
    spoken = set(re.findall("[a-z0-9]+", f"{gpu_name} {gpu.name}".lower()))
    for families, gb_s in table.items():
        if spoken & set(families):
            sentence = f"{field} of {gpu_name} is assumed to be {gb_s:g} GB/s"
            notes.append(f"{sentence}, as for its family: the GPU's file lacks it.")
            return gb_s
    raise SpecError(
        f"gpu {gpu_name}: {field} is not given; expected GB/s per direction"
    )
