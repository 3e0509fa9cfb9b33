"""The rules on what may live in host memory, by framework."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import (
    GRADIENTS,
    KEEPS_ALL,
    OPTIMIZER,
    PARAMETERS,
    Skeletons,
)
from meshwright.spec.spec import Framework, Spec

KNOWN_OFFLOADS: dict[Framework, tuple[int, ...]] = {
    "megatron": (OPTIMIZER,),
    "deepspeed": (OPTIMIZER, GRADIENTS, PARAMETERS),
    "internevo": (),
    "torchtitan": (PARAMETERS,),
    "fsdp": (PARAMETERS,),
}
"""What each framework offloads at all; the rules say when."""


def _is_alone(rows: Skeletons) -> Bools:
    """Return which rows shard over nobody: any ZeRO stage is the same to them."""
    return np.asarray(rows.dp * rows.cp == 1)


def _keeps_or(rows: Skeletons, allowed: Bools | np.bool_) -> Bools:
    return np.asarray((rows.offload == KEEPS_ALL) | allowed)


def _has_stage_for_drives(spec: Spec, rows: Skeletons) -> Bools:
    is_third = (rows.zero == 3) | (_is_alone(rows) & (rows.pp == 1))
    return _keeps_or(rows, is_third | np.bool_(spec.training.offload_to == "cpu"))


OFFLOAD_RULES = (
    Rule(
        "offload_supported",
        "offload needs the machine around the GPUs: cluster.topology.host",
        "the spec",
        lambda spec, rows: _keeps_or(
            rows, np.bool_(spec.cluster.topology.host is not None)
        ),
    ),
    Rule(
        "offload_supported",
        "only the optimizer is offloaded, and it is sharded if it can be",
        "Megatron-LM arguments.py: optimizer-cpu-offload, with the precision-aware "
        "and thus the distributed optimizer",
        lambda spec, rows: _keeps_or(
            rows, (rows.offload == OPTIMIZER) & ((rows.zero >= 1) | _is_alone(rows))
        ),
        "zero {zero}",
        ("megatron",),
    ),
    Rule(
        "offload_supported",
        "what is offloaded is sharded if it can be, and parameters need pp = 1",
        "DeepSpeed docs, config-json: offload_optimizer, offload_param; gradients are "
        "offloaded by ZeRO-2 (Ren et al. 2021, ZeRO-Offload, section 3)",
        lambda spec, rows: (
            (rows.offload <= rows.zero)
            | (_is_alone(rows) & ((rows.offload <= OPTIMIZER) | (rows.pp == 1)))
        ),
        "zero {zero}, pp {pp}",
        ("deepspeed",),
    ),
    Rule(
        "offload_supported",
        "all of the state is offloaded or none, and it is sharded if it can be",
        "PyTorch fully_shard: CPUOffloadPolicy",
        lambda spec, rows: _keeps_or(
            rows, (rows.offload == PARAMETERS) & ((rows.zero >= 2) | _is_alone(rows))
        ),
        "zero {zero}",
        ("torchtitan", "fsdp"),
    ),
    Rule(
        "offload_supported",
        "nothing is offloaded",
        "InternEvo: hybrid_zero_optimizer has no such setting",
        lambda spec, rows: rows.offload == KEEPS_ALL,
        "",
        ("internevo",),
    ),
    Rule(
        "drives_supported",
        "nothing is offloaded to NVMe drives",
        "Megatron-LM, PyTorch fully_shard: host memory alone",
        lambda spec, rows: _keeps_or(rows, np.bool_(spec.training.offload_to == "cpu")),
        "",
        ("megatron", "torchtitan", "fsdp"),
    ),
    Rule(
        "drives_supported",
        "NVMe drives need ZeRO-3",
        "DeepSpeed docs, config-json: offload_optimizer, device nvme (Rajbhandari et "
        "al. 2021, ZeRO-Infinity)",
        _has_stage_for_drives,
        "zero {zero}",
        ("deepspeed",),
    ),
)
