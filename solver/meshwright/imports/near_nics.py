"""Tells the NICs that serve GPUs from those of storage and management.

A machine such as DGX H100 has twelve ports, of which eight lie on the PCIe switches of
the GPUs. NCCL uses the nearest NICs of each GPU; the others carry no traffic of GPUs.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.imports.machine_facts import RELATIONS, MachineFacts

NEAR = RELATIONS.index("PXB")
"""The furthest relation of a NIC that lies on a PCIe switch of a GPU."""


def with_near_nics(machine: MachineFacts) -> MachineFacts:
    """Return a machine without the NICs that are nearest to no GPU.

    Nothing changes unless every GPU has a NIC on a PCIe switch of its own, nor for one
    GPU: of a shared machine it may see the NICs of the others.
    """
    if len(machine.gpus) < 2:
        return machine
    used: set[str] = set()
    for gpu in machine.gpus:
        ranks = {nic.name: _rank(machine, gpu, nic.name) for nic in machine.nics}
        nearest = min(ranks.values(), default=len(RELATIONS))
        if nearest > NEAR:
            return machine
        used |= {name for name, rank in ranks.items() if rank == nearest}
    far = [nic.name for nic in machine.nics if nic.name not in used]
    if not far:
        return machine
    kept = tuple(nic for nic in machine.nics if nic.name in used)
    note = (
        f"{', '.join(far[:8])}{', ...' if len(far) > 8 else ''}: nearest to no GPU, "
        f"as NICs of storage are; left out. {len(kept)} of {len(machine.nics)} NICs "
        "serve the GPUs."
    )
    return replace(machine, nics=kept, notes=(*machine.notes, note))


def _rank(machine: MachineFacts, gpu: str, nic: str) -> int:
    """Return how far a NIC is, as a place in RELATIONS; behind all if not known."""
    relation = machine.relations.get(frozenset((gpu, nic)))
    return RELATIONS.index(relation) if relation else len(RELATIONS)
