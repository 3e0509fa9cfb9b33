"""Bandwidth between CPU sockets by generation, as NCCL plans with it.

The table of NCCL: https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.h.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.imports.text import whole

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
    """What a file says of a CPU; empty where it says nothing."""

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
