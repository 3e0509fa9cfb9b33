"""Counts over the facts of imported files, as tests compare them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshwright.imports.infiniband import IbFabric
from meshwright.imports.machines.facts import RELATIONS
from meshwright.imports.machines.nccl_xml import NcclXml
from meshwright.imports.machines.nvidia_smi import NvidiaTopo
from meshwright.imports.slurm_nodes import SlurmGres


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]


def gpu_pair_cells(facts: NvidiaTopo) -> dict[str, int]:
    """Return how many pairs of GPUs have each cell."""
    return dict(Counter(filter(None, (facts.cell(a, b) for a, b in pairs(facts.gpus)))))


def nearest_nics(facts: NvidiaTopo) -> dict[str, tuple[str, list[str]]]:
    """Return, for each GPU, the nearest relation to a NIC and all NICs in it."""
    found = {}
    for gpu in facts.gpus:
        cells = {nic: facts.cell(gpu, nic) or "" for nic in facts.nics}
        cells = {nic: "SYS" if cell == "SOC" else cell for nic, cell in cells.items()}
        near = [cell for cell in RELATIONS if cell in cells.values()][:1]
        if near:
            found[gpu] = (near[0], [nic for nic in cells if cells[nic] == near[0]])
    return found


def gpu_pair_links(facts: SlurmGres) -> dict[str, int]:
    """Return how many pairs of GPUs have each number of links."""
    upper = (gpu.links[i + 1 :] for i, gpu in enumerate(facts.gpus))
    return dict(Counter(str(count) for row in upper for count in row))


def links_per_gpu(facts: NcclXml, kind: str) -> list[int]:
    """Return how many links of a kind (nvlink, xgmi) each GPU has."""
    return [
        sum(link.count for link in gpu.links if link.kind == kind) for gpu in facts.gpus
    ]


def net_speeds_mbps(facts: NcclXml) -> list[int]:
    """Return the speeds of network ports, each once, in Mbit/s."""
    nets = (net for device in facts.devices for net in device.nets)
    return sorted({net.mbit_s for net in nets if net.mbit_s})


def block_count(facts: IbFabric, kind: str) -> int:
    """Return how many blocks of a kind there are: Switch, Ca, Rt."""
    return sum(block.kind == kind for block in facts.blocks)


def port_lines_by_speed(facts: IbFabric) -> dict[str, int]:
    """Return how many port lines have each speed, both ends of a cable counted."""
    return dict(Counter(port.speed for port in facts.ports if port.speed))


def names_seen_from_switches(facts: IbFabric) -> set[str]:
    """Return the first word of each adapter's name, those of SHARP included."""
    names = (port.peer_name for port in facts.ports if port.peer.startswith("H-"))
    return {name.split()[0] for name in names if name.split()}
