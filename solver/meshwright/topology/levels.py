"""Prices meshes on a tree of switches by closed form: 16,384 GPUs cost what 64 do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.spec.cluster import Level
from meshwright.topology.paths import Meshes


class LevelFabric:
    """A regular cluster: every switch of a level has the same children.

    Its links are one per level, since all uplinks of a level carry the same.
    """

    def __init__(self, levels: Sequence[Level]) -> None:
        """Keep the levels, innermost first."""
        self.levels = tuple(levels)
        self.sizes = tuple(level.size for level in self.levels)
        below = ("gpu", *(level.name for level in self.levels))
        self.link_names = tuple(
            f"{child}0 -> {level.name}0"
            for child, level in zip(below, self.levels, strict=False)
        )
        self._gpus_below = [math.prod(self.sizes[:i]) for i in range(len(self.sizes))]
        self.link_gb_s = tuple(
            level.gb_s * (gpus if level.uplink == "per_gpu" else 1)
            for level, gpus in zip(self.levels, self._gpus_below, strict=True)
        )

    def loads(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return seconds per byte on the uplinks of each level.

        A ring that leaves a child passes each byte over the child's uplinks once.
        Below that child sit C GPUs, M of them in the group, so C / M groups load its
        uplinks at once: (C / M) / gb_s per byte, where gb_s is that of all uplinks.
        """
        reach = _reach(meshes)
        members = np.ones(meshes.shape[:2])
        loads = np.zeros(meshes.shape)
        for index, gpus in enumerate(self._gpus_below):
            per_byte = gpus / members / (self.link_gb_s[index] * 1e9)
            loads[:, :, index] = np.where(reach > index, per_byte, 0.0)
            members = members * meshes[:, :, index]
        return loads

    def latency_s(self, meshes: Meshes) -> NDArray[np.float64]:
        """Return the latency up to the highest level that an axis spans, and down."""
        hops_us = np.cumsum([0.0, *(2 * level.latency_us for level in self.levels)])
        return np.asarray(hops_us[_reach(meshes)] * 1e-6)


def _reach(meshes: Meshes) -> NDArray[np.int64]:
    """Return how many levels each axis spans: 0 if it has one member."""
    levels = np.arange(1, meshes.shape[2] + 1)
    result: NDArray[np.int64] = np.max(np.where(meshes > 1, levels, 0), axis=2)
    return result
