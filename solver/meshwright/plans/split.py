"""How the layers of one plan are split over its pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.plans.columns import Ints


@dataclass(frozen=True)
class Split:
    """Layers and recomputed layers of every stage of one skeleton, (stages,)."""

    layers: Ints
    recomputed: Ints
