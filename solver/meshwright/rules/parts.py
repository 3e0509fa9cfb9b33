"""Rules for clusters of unlike parts whose pipeline stages each lie on one part."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Bools
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import Skeletons
from meshwright.spec.cluster import StagedCluster
from meshwright.spec.plan_fields import AXES
from meshwright.spec.spec import Spec
from meshwright.topology.fabric import Meshes

SOURCE = "the parts of the cluster"


def part_degree_rules(spec: Spec) -> list[Rule]:
    """Return the rule that each part holds whole stages, where stages lie on parts."""
    return [STAGES_FILL_PARTS] if isinstance(spec.cluster, StagedCluster) else []


def part_mesh_rules(spec: Spec, meshes: Meshes) -> list[Rule]:
    """Return the rule that no host holds stages of two parts, likewise."""
    cluster = spec.cluster
    if not isinstance(cluster, StagedCluster):
        return []
    parts = cluster.order

    def holds(_spec: Spec, rows: Skeletons) -> Bools:
        inside = meshes[rows.mesh, AXES.index("pp"), 0]
        whole = [_stages(spec, rows, part.gpus) % inside == 0 for part in parts]
        return np.asarray(np.all(whole, axis=0))

    sentence = "the stages that share hosts are of one part"
    return [Rule("hosts_of_one_part", sentence, SOURCE, holds, "pp {pp}")]


def _stages(spec: Spec, rows: Skeletons, gpus: int) -> Bools:
    """Return the number of stages on a part with this many GPUs."""
    return np.asarray(rows.pp * gpus // spec.cluster.gpus)


def _fills_parts(spec: Spec, rows: Skeletons) -> Bools:
    cluster = spec.cluster
    assert isinstance(cluster, StagedCluster)
    whole = [rows.pp * part.gpus % cluster.gpus == 0 for part in cluster.order]
    return np.asarray(np.all(whole, axis=0))


STAGES_FILL_PARTS = Rule(
    "stages_fill_parts",
    "each part holds a whole number of stages",
    SOURCE,
    _fills_parts,
    "pp {pp}",
)
