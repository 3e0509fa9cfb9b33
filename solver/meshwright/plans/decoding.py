"""Turns a row of the lattice and a split into the plan it stands for."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.plans.plan import Plan, Stage
from meshwright.plans.skeletons import Skeletons
from meshwright.plans.split import Split
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.pins import AXES, OFFLOADS, RECOMPUTE_MODES, SCHEDULES
from meshwright.topology.fabric import Place


def to_plan(
    rows: Skeletons, row: int, split: Split, place: Place, gpus: Sequence[str] = ()
) -> Plan:
    """Return the plan of one row, whose ranks are in a place.

    `gpus` are the GPUs of each stage, where they differ.
    """
    counts = zip(split.layers.tolist(), split.recomputed.tolist(), strict=True)
    stages = zip(counts, gpus or [""] * len(split.layers), strict=True)
    return Plan(
        tp=int(rows.tp[row]),
        pp=int(rows.pp[row]),
        vpp=int(rows.vpp[row]),
        cp=int(rows.cp[row]),
        ep=int(rows.ep[row]),
        dp_replicate=int(rows.dp_replicate[row]),
        dp_shard=int(rows.dp_shard[row]),
        micro_batch=int(rows.micro_batch[row]),
        microbatches=int(rows.microbatches[row]),
        zero=int(rows.zero[row]),
        sequence_parallel=bool(rows.sequence_parallel[row]),
        recompute=RECOMPUTE_MODES[int(rows.recompute[row])],
        schedule=SCHEDULES[int(rows.schedule[row])],
        offload=OFFLOADS[int(rows.offload[row])],
        precision=PRECISIONS[int(rows.precision[row])],
        stages=tuple(
            Stage(layers=n, recompute_layers=r, gpu=gpu) for (n, r), gpu in stages
        ),
        mesh={axis: tuple(place.mesh[i].tolist()) for i, axis in enumerate(AXES)},
        seats=place.order,
    )
