"""Brute force for the simplest plan, and for all plans near the fastest.

It counts techniques and looks at splits with its own loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.frameworks.base.selective import offered_sets
from meshwright.spec.plan_fields import SELECTIVE
from meshwright.spec.spec import Spec
from tests.helpers.oracle import NAMES, Splits, every_split

DECISIONS = (*(name for name in NAMES if name != "mesh"), "sequence_parallel")

Key = tuple[int, ...]


@dataclass(frozen=True)
class Everything:
    """Every plan of a spec: skeletons without meshes, simplicity and step times."""

    decisions: list[Key]
    simplicity: list[Key]
    step_s: list[float]

    @property
    def fastest_s(self) -> float:
        """Return the least step time; infinite without a plan."""
        return min(self.step_s, default=math.inf)

    def simplest(self, most_s: float) -> tuple[Key, float]:
        """Return the simplest of all plans within a step time, and its own time."""
        pairs = zip(self.simplicity, self.step_s, strict=True)
        return min(pair for pair in pairs if pair[1] <= most_s)

    def near(self, most_s: float) -> set[Key]:
        """Return the decisions of all plans within a step time."""
        pairs = zip(self.decisions, self.step_s, strict=True)
        return {key for key, step_s in pairs if step_s <= most_s}

    def fastest_with(self, name: str) -> dict[int, float]:
        """Return the step time of the fastest plan with each value of a decision."""
        index, fastest = DECISIONS.index(name), dict[int, float]()
        for key, step_s in zip(self.decisions, self.step_s, strict=True):
            fastest[key[index]] = min(step_s, fastest.get(key[index], math.inf))
        return fastest


def everything(spec: Spec, most_s: float = math.inf) -> Everything:
    """Return every plan of a spec on a tree that takes no longer than `most_s`.

    Plans are left out that recompute modules which free no memory: a framework takes
    them, but nobody runs them, and Meshwright does not offer them.
    """
    result, offered = Everything([], [], []), {*offered_sets(spec)}
    for own in every_split(spec, most_s):
        is_selective = own.rows.recompute[0] == SELECTIVE
        if is_selective and int(own.rows.recompute_modules[0]) not in offered:
            continue
        decisions = tuple(int(getattr(own.rows, name)[0]) for name in DECISIONS)
        for index in range(len(own.step_s)):
            result.decisions.append(decisions)
            result.simplicity.append(simplicity(spec, own, index))
            result.step_s.append(float(own.step_s[index]))
    return result


def simplicity(spec: Spec, own: Splits, index: int) -> Key:
    """Return how simple a split is, in the order of the spec's criteria."""
    row: dict[str, Any] = {name: int(getattr(own.rows, name)[0]) for name in DECISIONS}
    degrees = sum(row[name] > 1 for name in ("tp", "pp", "vpp", "cp", "ep", "zero"))
    words = sum(row[name] != 0 for name in ("schedule", "recompute", "offload"))
    layers, recomputed = own.layers[index], own.recomputed[index]
    some = 0 < recomputed.sum() < layers.sum()
    known = {
        "techniques": degrees + words,
        "offload": int(row["offload"] != 0),
        "short_context_parallel": int(row["cp"] > 1 and spec.training.seq_len < 32_768),
        "zero3_in_pipeline": int(row["zero"] == 3 and row["pp"] > 1),
        "uneven_stages": int(np.ptp(layers) > 0),
        "partial_recompute": int(some),
        "odd_micro_batch": int(not math.log2(row["micro_batch"]).is_integer()),
    }
    return tuple(known[name] for name in spec.objective.criteria)
