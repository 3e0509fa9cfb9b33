"""Repairs that buy hardware: machines, larger GPUs, memory of hosts; or less safety.

Only what is sold is offered: hosts as they are, GPUs of the catalogue that sit in the
same socket, and hosts with the sizes of memory that hosts come with.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.explanations.conflict import HasPlan
from meshwright.explanations.gpu_repairs import larger_gpu_repair, less_safety_repair
from meshwright.explanations.host_repairs import host_repair
from meshwright.explanations.machine_repairs import machine_repair
from meshwright.explanations.repairs import Solve
from meshwright.results.explanation import Repair
from meshwright.spec.spec import Spec


def hardware_repairs(
    spec: Spec, needed_gib: float | None, solve: Solve, has_plan: HasPlan
) -> Iterator[Repair]:
    """Yield the repairs by machines, larger GPUs, a host or less safety.

    `needed_gib` is what the plan that comes closest needs on its fullest GPU.
    """
    if spec.cluster.parts:
        return
    yield from machine_repair(spec, solve, has_plan)
    yield from larger_gpu_repair(spec, solve, has_plan)
    yield from host_repair(spec, solve, has_plan)
    yield from less_safety_repair(spec, needed_gib, solve)
