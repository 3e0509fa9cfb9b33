"""Every mesh of a cluster, whatever its degrees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.planner.degrees import enumerate_degrees, enumerate_meshes
from meshwright.topology.fabric import Meshes


def every_mesh(sizes: Sequence[int]) -> Meshes:
    degrees, _ = enumerate_degrees(sizes)
    return np.concatenate([enumerate_meshes(sizes, degree) for degree in degrees])
