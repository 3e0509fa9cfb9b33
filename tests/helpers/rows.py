"""One skeleton to hold rules against."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.plans.skeletons import Skeletons
from meshwright.spec.plan_fields import KEEPS_ALL, NONE, ONE_F_ONE_B
from meshwright.topology.fabric import free_paths
from meshwright.topology.groups import GROUPS


def row(**fields: object) -> Skeletons:
    """Return one skeleton; fields that are left out are the plainest ones."""
    values: dict[str, object] = {
        "tp": 1,
        "dp_shard": 1,
        "dp_replicate": 1,
        "cp": 1,
        "pp": 1,
        "ep": 1,
        "etp": 1,
        "vpp": 1,
        "micro_batch": 1,
        "microbatches": 48,
        "zero": 0,
        "recompute": NONE,
        "recompute_modules": 0,
        "recompute_segment": 1,
        "sequence_parallel": False,
        "schedule": ONE_F_ONE_B,
        "offload": KEEPS_ALL,
        "precision": 0,
        "mesh": 0,
    } | fields
    columns: dict[str, Any] = {
        name: np.array([value]) for name, value in values.items()
    }
    return Skeletons(**columns, paths=free_paths(1, len(GROUPS)))
