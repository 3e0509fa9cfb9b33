"""Encodes plans as rows of columns with a split, and decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.plans.plan import Plan, Stage
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split
from meshwright.spec.plan_fields import AXES, FIELDS
from meshwright.topology.fabric import Fabric, Place, free_paths
from meshwright.topology.groups import price_groups


def to_plan(
    rows: Skeletons, row: int, split: Split, place: Place, gpus: Sequence[str] = ()
) -> Plan:
    """Return the plan of one row with its split and its place.

    `gpus` names the GPU of each stage, where stages differ in it.
    """
    values: dict[str, Any] = {
        field.name: field.decoded(int(getattr(rows, field.name)[row]))
        for field in FIELDS
    }
    counts = zip(split.layers.tolist(), split.recomputed.tolist(), strict=True)
    stages = zip(counts, gpus or [""] * len(split.layers), strict=True)
    return Plan(
        **values,
        stages=tuple(
            Stage(layers=n, recompute_layers=r, gpu=gpu) for (n, r), gpu in stages
        ),
        mesh={axis: tuple(place.mesh[i].tolist()) for i, axis in enumerate(AXES)},
        seats=place.order,
    )


def to_row(fabric: Fabric, plan: Plan) -> tuple[Skeletons, Place]:
    """Return a plan as one row, and the place of its ranks."""
    mesh = np.array([[plan.mesh[axis] for axis in AXES]], dtype=np.int64)
    row = to_unplaced_row(plan)
    paths = price_groups(fabric.placed(plan.seats), mesh, row.ep)
    return row.on_meshes(paths, np.array([0])), Place(mesh[0], plan.seats)


def to_unplaced_row(plan: Plan) -> Skeletons:
    """Return the fields of a plan as one row without a mesh."""
    columns: dict[str, Any] = {
        field.name: np.array([field.encoded(getattr(plan, field.name))], field.dtype)
        for field in FIELDS
    }
    return Skeletons(**columns, paths=free_paths(1, 0), mesh=np.array([-1]))


def to_split(plan: Plan) -> Split:
    """Return the layers and recomputed layers of a plan's stages."""
    return Split(
        np.array([stage.layers for stage in plan.stages]),
        np.array([stage.recompute_layers for stage in plan.stages]),
    )
