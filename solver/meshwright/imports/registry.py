"""The kinds of files that can be imported, and a guess at the kind of a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

from meshwright.imports.text import read_lines

MODULES = {
    "nvidia_smi": "nvidia.smi_topo",
    "rocm_smi": "rocm.smi_showtopo",
    "nccl_xml": "nccl.topology_xml",
    "hwloc": "hwloc.lstopo_xml",
    "slurm": "slurm.network",
    "slurm_gres": "slurm.gres",
    "scontrol": "slurm.scontrol",
    "ibnetdiscover": "infiniband.ibnetdiscover",
    "ibstat": "infiniband.ibstat",
    "hostfile": "hostfile",
    "nccl_tests": "nccl.tests_log",
}

KINDS: dict[str, Callable[[], ModuleType]] = {
    kind: partial(import_module, f"meshwright.imports.{module}")
    for kind, module in MODULES.items()
}
"""By name: what imports the module of a kind, with its `parse(text, name)`."""

READ = 20_000
"""Characters of a text that a guess looks at, from its start."""

SIGNS = {
    "nccl_tests": r"\balgbw\s.{0,80}\bbusbw\b|\bnThread \d|Collective test starting",
    "nccl_xml": r"<(?:system|graphs)[\s>]",
    "hwloc": r"<topology[\s>]|<!DOCTYPE topology",
    "rocm_smi": r"={2} ?(?:Weight|Hops|Link Type) between two|ROCm System Man",
    "scontrol": r"\bNodeName=\S{1,200} .{0,400}\b(?:CoresPerSocket|CPUTot|State)=",
    "slurm_gres": r"\bGres Name=|\bName=gpu\b|AutoDetect=",
    "slurm": r"(?im)^\s{0,9}(?:Switch|Block|Ring)Name=|^\s{0,9}- topology:",
    "ibnetdiscover": r"(?m)^(?:Switch|Ca)\s{1,9}\d{1,5}\s{1,9}\"[SH]-|^switchguid=",
    "ibstat": r"(?m)^VM_hostname |^CA '|^\s{0,9}Port GUID: ",
    "nvidia_smi": r"\bGPU0(?:\W|\\t){1,60}X\b",
    "hostfile": r"(?m)^[\w.@-]{1,80}[ \t]{1,20}slots ?= ?\d",
}
"""By kind: what stands in its files and in no other's."""


def detect(text: str) -> str | None:
    """Return the kind that a text looks like, None where it looks like none."""
    lines = read_lines(text[:READ], "text")
    start = "\n".join(line.text for line in lines)
    return next((kind for kind, sign in SIGNS.items() if re.search(sign, start)), None)
