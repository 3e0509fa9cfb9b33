"""The bandwidth of the PCIe ports of GPUs: by generation, width and peer access."""

from __future__ import annotations

import re

from meshwright.imports.default_bandwidths import family_value
from meshwright.imports.machine_facts import MachineFacts
from meshwright.spec.gpu import Gpu

PCIE_SHARE = 0.8
"""Estimate: share of the rate of a PCIe link that copies reach (dgx-a100.yaml)."""

PCIE_GB_S = {
    ("p100", "v100"): 12.5,
    ("a100", "a800", "a6000", "a40", "3090", "4090", "l4", "l40", "l40s"): 25.0,
    ("h20", "h100", "h200", "h800", "b200", "b300", "5090", "mi300x", "mi325x"): 50.0,
}
"""Estimate, by words in the name of the GPU: 0.8 of PCIe 3.0, 4.0 and 5.0 x16, as in
dgx-a100.yaml and dgx-h100.yaml."""

LANE_GB_S = {
    "2.0": 0.5,
    "3.0": 8 / 8 * 128 / 130,
    "4.0": 16 / 8 * 128 / 130,
    "5.0": 32 / 8 * 128 / 130,
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


def port_bandwidth_gb_s(
    machine: MachineFacts, gpu: Gpu, gpu_name: str, notes: list[str]
) -> float:
    """Return GB/s that copies over a GPU's PCIe port reach per direction.

    It is that of the link in the file where this is narrower than the GPU's own; a
    note says the generation and width.

    Raises:
        SpecError: neither the GPU, the file nor the table has it.
    """
    own, rate = gpu.pcie_gb_s, machine.port_rate_gb_s
    of_file = None if rate is None else round(PCIE_SHARE * rate, 2)
    if of_file is not None and (own is None or of_file < own * (1 - NEAR_RATE)):
        gb_s, why = of_file, "the link in the file"
    elif own is not None:
        gb_s = own
        why = "the link in the file" if of_file else "the GPU's own; the file has none"
    else:
        gb_s = family_value(PCIE_GB_S, "pcie_gb_s", gpu, gpu_name, notes)
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
    words = set(re.findall("[a-z0-9]+", gpu.name.lower()))
    if machine.has_peer_access or (
        machine.has_peer_access is None and not words & NO_PEER_ACCESS
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
