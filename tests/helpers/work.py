"""Counts what passes between the steps of solves: what they look at to be sure.

Counts of one version are in YAML; the tests that compare them write today's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from meshwright.cpsat.ortools import cp_model
from meshwright.explanations import levers
from meshwright.planner import (
    best_split,
    compute_bound,
    degrees,
    families,
    legal_ways,
    memory_fit,
    narrow,
    parts,
    placer,
    plans,
    split_bounds,
    unplaced,
)
from meshwright.planner import solve as solving
from meshwright.planner.candidates import Pruned
from meshwright.planner.integer_costs import Scaled

FOLDER = Path(__file__).parents[1] / "data"

COUNTED = (
    "listed", "measured", "placed", "survivors", "candidates", "near", "open",
    "without_plan", "models", "constraints", "variables",
    "timed", "weighed", "staged", "paced", "ruled", "meshed", "ordered", "proven",
    "dealt", "constructed", "sought", "placed_parts", "solves", "kernels",
    "placings", "timings", "stagings", "measurings", "sortings", "sorted",
    "scored",
)  # fmt: skip

SLACK = 1.03
"""Factor within which counts may change: prices that change move bounds past each
other."""


class Work:
    """Counts what passes between the steps of a solve."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts = Counter[str]()
        self._patch = patch
        self._count(narrow, "fitting_rows", lambda *given: {"listed": len(given[3])})
        self._count(
            narrow,
            "measure_stages",
            lambda *this: {"measured": len(this[1]), "measurings": 1},
        )
        self._count(
            narrow,
            "place_and_bound",
            lambda *this: {"placed": len(this[2].number), "placings": 1},
        )
        self._count(cp_model.CpSolver, "solve", self._of_model)
        self._count(
            memory_fit,
            "price_time",
            lambda *this: {"timed": len(this[1]), "timings": 1},
        )
        self._count(memory_fit, "price_memory", lambda *this: {"weighed": len(this[1])})
        self._count(memory_fit, "stages_of", self._of_stages)
        for step in ("fluid_layers", "most_layers"):
            self._count(split_bounds, step, lambda *this: {"paced": this[0].layer.size})
        self._count(degrees, "_every_mesh", lambda *this: {"meshed": len(this[1])})
        self._count(placer.Placer, "_on_mesh", lambda *_: {"ordered": 1})
        # Meshes that another solve has listed are not listed again.
        degrees._known.cache_clear()
        for room in (degrees, unplaced, legal_ways):
            self._count(room, "holding", lambda *this: {"ruled": this[2].tp.size})
        self._count(plans.Plans, "prove", lambda *_: {"proven": 1})
        self._count(best_split._Stages, "_paths", lambda *_: {"dealt": 1})
        self._count(plans, "constructed_split", lambda *_: {"constructed": 1})
        self._count(parts, "fitting_rows", lambda *this: {"sought": len(this[3])})
        self._count(
            parts,
            "place_and_bound",
            lambda *this: {"placed_parts": len(this[2]), "placings": 1},
        )
        self._count(
            families.Families,
            "least",
            lambda *this: {"sortings": 1, "sorted": len(this[1])},
        )
        self._count(levers, "score", lambda *_: {"scored": 1})
        self._count(solving, "best_outcome", lambda *_: {"solves": 1})
        self._count(
            compute_bound, "mean_time_costs", lambda *this: {"kernels": len(this[1])}
        )
        pruning = self._pruning(narrow.prune)
        patch.setattr("meshwright.planner.answer.prune", pruning)

    def _count(self, owner: Any, name: str, of: Callable[..., dict[str, int]]) -> None:
        before = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            self.counts.update(of(*given))
            return before(*given, **named)

        self._patch.setattr(owner, name, counted)

    def _of_stages(self, costs: Scaled, *_: object) -> dict[str, int]:
        return {"staged": int(costs.rows.pp.sum()), "stagings": 1}

    def _of_model(self, _solver: object, model: Any) -> dict[str, int]:
        proto = model.proto
        return {
            "models": 1,
            "constraints": len(proto.constraints),
            "variables": len(proto.variables),
        }

    def _pruning(self, prune: Callable[..., Pruned]) -> Callable[..., Pruned]:
        def counted(*given: Any, **named: Any) -> Pruned:
            found = prune(*given, **named)
            kept = found.near.take(np.flatnonzero(found.near.fits))
            has_plan = np.isfinite(kept.upper)
            share = 1 - kept.lower[has_plan] / kept.upper[has_plan]
            self.counts.update(
                survivors=found.counts.survivors,
                candidates=len(found.candidates),
                near=len(found.near),
                # Per mille by which bounds of those left are below a plan of theirs.
                open=int(1000 * share.sum()),
                without_plan=int((~has_plan).sum()),
            )
            return found

        return counted


def counted(doing: Callable[[], object], patch: pytest.MonkeyPatch) -> dict[str, int]:
    """Do something, and return how much it looks at."""
    work = Work(patch)
    doing()
    return {of: work.counts[of] for of in COUNTED}


def changed(file: str, name: str, found: dict[str, int]) -> dict[str, str]:
    """Return which counts of a case are not what they were, and both numbers.

    What is less is to be written down too: from stale counts none would see a loss.
    """
    before = yaml.safe_load((FOLDER / file).read_text(encoding="utf-8"))[name]
    assert before.keys() == found.keys()
    return {
        of: f"{n}, was {before[of]}"
        for of, n in found.items()
        if not before[of] <= n * SLACK <= before[of] * SLACK**2
    }


def write(file: str, names: Iterable[str], work: Callable[..., dict[str, int]]) -> None:
    """Write the counts of today, a line for each case."""
    with (FOLDER / file).open("w", encoding="utf-8") as lines:
        for name in names:
            with pytest.MonkeyPatch.context() as patch:
                yaml.safe_dump(
                    {name: work(name, patch)}, lines, width=inf, sort_keys=False,
                    default_flow_style=None,
                )  # fmt: skip
