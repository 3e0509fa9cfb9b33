"""Turns a row of the lattice and a split into the plan they stand for, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.plans.plan import Plan, Stage
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split
from meshwright.spec.plan_fields import AXES, FIELDS
from meshwright.topology.fabric import Fabric, Place
from meshwright.topology.groups import price_groups


def to_plan(
    rows: Skeletons, row: int, split: Split, place: Place, gpus: Sequence[str] = ()
) -> Plan:
    """Return the plan of one row, whose ranks are in a place.

    `gpus` are the GPUs of each stage, where they differ.
    """
    values: dict[str, Any] = {
        own.name: own.decoded(int(getattr(rows, own.name)[row])) for own in FIELDS
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
    """Return a plan as a skeleton column of length one, and where its ranks are."""
    mesh = np.array([[plan.mesh[axis] for axis in AXES]], dtype=np.int64)
    codes = {own: own.encoded(getattr(plan, own.name)) for own in FIELDS}
    columns: dict[str, Any] = {
        own.name: np.array([code], own.dtype) for own, code in codes.items()
    }
    paths = price_groups(fabric.placed(plan.seats), mesh, columns["ep"])
    rows = Skeletons(**columns, paths=paths, mesh=np.array([0]))
    return rows, Place(mesh[0], plan.seats)


def to_split(plan: Plan) -> Split:
    """Return the layers and recomputed layers of a plan's stages."""
    return Split(
        np.array([stage.layers for stage in plan.stages]),
        np.array([stage.recompute_layers for stage in plan.stages]),
    )
