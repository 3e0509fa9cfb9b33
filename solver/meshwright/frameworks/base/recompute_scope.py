"""Recompute scopes: of how many layers a framework lets users choose recomputation.

No framework takes any number for any stage. Megatron-LM has one number for all model
chunks, most others recompute every layer or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.plans.columns import Ints

PER_STAGE, ONE_NUMBER, ALL_LAYERS = range(3)
"""Codes of scopes in columns: any number of layers on every stage, one number for all
model chunks, every layer."""


@dataclass(frozen=True)
class RecomputeScope:
    """How many layers of each stage a framework recomputes in one mode."""

    code: int
    sentence: str
    source: str = ""
    """File and version of the framework in which this was read."""


IN_SEGMENTS = RecomputeScope(ALL_LAYERS, "segments hold every layer of a chunk")
ANY_NUMBER = RecomputeScope(PER_STAGE, "every stage recomputes any number of layers")


def one_number(source: str) -> RecomputeScope:
    """Return the scope of a framework that has one number for all model chunks."""
    sentence = "every model chunk recomputes its first k layers, k the same for all"
    return RecomputeScope(ONE_NUMBER, sentence, source)


def all_layers(source: str) -> RecomputeScope:
    """Return the scope of a framework that recomputes every layer or none."""
    return RecomputeScope(ALL_LAYERS, "every layer is recomputed", source)


def fewest_in_scope(scope: Ints, needed: Ints, layers: Ints, chunks: Ints) -> Ints:
    """Return the fewest recomputed layers that scopes allow, (rows, stages).

    Stages have `layers`, must recompute at least `needed`, and `scope` and `chunks`
    are columns, (rows, 1). A stage whose v chunks differ by at most one layer
    recomputes min(v k, n) of its n layers where each chunk recomputes its first k: up
    to the size of the small chunks all recompute k, and one more is every layer.
    """
    k = (-(-needed // chunks)).max(axis=-1, keepdims=True)
    first = np.minimum(chunks * k, layers)
    allowed: Ints = np.select(
        [scope == PER_STAGE, scope == ONE_NUMBER], [needed, first], layers
    )
    return allowed
