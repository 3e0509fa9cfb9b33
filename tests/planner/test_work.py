"""How much a solve looks at: filters and bounds that let more through cost only time.

The counts are those of one version, in `tests/data/work.yaml`. `python -m
tests.planner.test_work` writes today's: less is an improvement to keep, and more needs
a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import meshwright as mw
from meshwright.cost.profile import load_profile
from meshwright.cpsat.ortools import cp_model
from meshwright.planner import (
    best_split,
    degrees,
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
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from tests.ui.questions import SMALL

Spec = dict[str, Any]

WAITS: Spec = SMALL | {"rules": [{"that": "parts.bubble <= step_s / 50"}]}

LEADING: Spec = {
    "model": "deepseek-v3",
    "cluster": {"topology": "dgx-h100", "count": 64},
    "framework": "megatron",
    "training": {"seq_len": 4096, "global_batch": 2048},
}

BUBBLES: Spec = {
    "model": "qwen3-32b",
    "cluster": {"topology": "dgx-a100", "count": 4},
    "framework": "torchtitan",
    "training": {"seq_len": 8192, "global_batch": 64},
}

CASES: dict[str, tuple[str | Spec, dict[str, Any]]] = {
    "whole lattice": ("gpt-1.3b-2x3090-nvlink", {}),
    "cube": ("gpt-1.3b-dgx-1v", {}),
    "busy cube": ("gpt-1.3b-dgx-1v", {"limits": {"max_link_utilisation": 0.05}}),
    "degraded": ("llama3-8b-512xa100-degraded", {}),
    "tight": ("llama3-70b-16xh100", {}),
    "experts": ("mixtral-8x7b-64xh100", {}),
    "wide": ("llama3-70b-256xh100", {}),
    "pinned": ("llama3-70b-128xa100", {"pins": {"tp": 8, "pp": 4, "vpp": 1}}),
    "unlike": ("gpt2-xl-2x3090-2x4090", {}),
    "waits": (WAITS, {}),
    "leading": (LEADING, {}),
    "bubbles": (BUBBLES, {"pins": {"pp": {"min": 2}}}),
    "recommended": ("mixtral-8x7b-64xh100", {"pins": {"vpp": 1}}),
    "doubted": ("llama2-13b-8xa100", {}),
    "safe": ("llama3-70b-16xh100", {"pins": {"cp": 1}}),
    "nothing fits": ("llama3-70b-16xa100", {}),
    "near": ("llama2-13b-8xa100", {"pins": {"cp": 1}}),
}
"""A spec, and what is set in it."""

OPTIONS: dict[str, dict[str, Any]] = {
    "cube": {"near": 0.02},
    "experts": {"is_by_kind": True},
    "pinned": {"top": 3},
    "recommended": {"profile": load_profile("measured"), "is_by_kind": True},
    "doubted": {"profile": load_profile("measured"), "is_doubted": True},
    "safe": {"is_safety": True},
    "near": {"near": 0.05},
}


COUNTED = (
    "listed", "measured", "placed", "survivors", "candidates", "near", "open",
    "without_plan", "models", "constraints", "variables",
    "timed", "weighed", "staged", "paced", "ruled", "meshed", "ordered", "proven",
    "dealt", "constructed", "sought", "placed_parts", "solves",
)  # fmt: skip

DATA = Path(__file__).parents[1] / "data" / "work.yaml"


SLACK = 1.05
"""Factor within which counts may grow: prices that change move bounds past each other.
"""


class Work:
    """Counts what passes between the steps of a solve."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts = Counter[str]()
        self._patch = patch
        self._count(narrow, "fitting_rows", lambda *given: {"listed": len(given[3])})
        self._count(narrow, "measure_stages", lambda *own: {"measured": len(own[1])})
        self._count(
            narrow, "place_and_bound", lambda *own: {"placed": len(own[2].number)}
        )
        self._count(cp_model.CpSolver, "solve", self._of_model)
        self._count(memory_fit, "price_time", lambda *own: {"timed": len(own[1])})
        self._count(memory_fit, "price_memory", lambda *own: {"weighed": len(own[1])})
        self._count(memory_fit, "stages_of", self._of_stages)
        for step in ("fluid_layers", "most_layers"):
            self._count(split_bounds, step, lambda *own: {"paced": own[0].layer.size})
        self._count(degrees, "_every_mesh", lambda *own: {"meshed": len(own[1])})
        self._count(placer.Placer, "_on_mesh", lambda *_: {"ordered": 1})
        # Meshes that another solve has listed are not listed again.
        degrees._known.cache_clear()
        for room in (degrees, unplaced, legal_ways):
            self._count(room, "holding", lambda *own: {"ruled": own[2].tp.size})
        self._count(plans.Plans, "prove", lambda *_: {"proven": 1})
        self._count(best_split._Stages, "_paths", lambda *_: {"dealt": 1})
        self._count(plans, "constructed_split", lambda *_: {"constructed": 1})
        self._count(parts, "fitting_rows", lambda *own: {"sought": len(own[3])})
        self._count(
            parts, "place_and_bound", lambda *own: {"placed_parts": len(own[2])}
        )
        self._count(solving, "best_outcome", lambda *_: {"solves": 1})
        pruning = self._pruning(narrow.prune)
        patch.setattr("meshwright.planner.answer.prune", pruning)

    def _count(self, owner: Any, name: str, of: Callable[..., dict[str, int]]) -> None:
        before = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            self.counts.update(of(*given))
            return before(*given, **named)

        self._patch.setattr(owner, name, counted)

    def _of_stages(self, costs: Scaled, *_: object) -> dict[str, int]:
        return {"staged": int(costs.rows.pp.sum())}

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


def work(name: str, patch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how much a solve of a case looks at."""
    source, sections = CASES[name]
    spec = mw.load(source, mw.Spec)
    for section, fields in sections.items():
        data = spec.model_dump(exclude_unset=True)
        data[section] = data.get(section, {}) | fields
        spec = mw.Spec.model_validate(data)
    counted = Work(patch)
    solve(spec, Options(tolerance=0.02, **OPTIONS.get(name, {})))
    return {of: counted.counts[of] for of in COUNTED}


@pytest.mark.parametrize("name", CASES)
def test_no_more_is_looked_at_than_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = yaml.safe_load(DATA.read_text(encoding="utf-8"))[name]
    found = work(name, monkeypatch)
    assert before.keys() == found.keys()
    more = {of: n for of, n in found.items() if n > SLACK * before[of]}
    assert not more, before


def main() -> None:
    """Write the counts of today, a line for each case."""
    with DATA.open("w", encoding="utf-8") as file:
        for name in CASES:
            with pytest.MonkeyPatch.context() as patch:
                yaml.safe_dump(
                    {name: work(name, patch)}, file, width=inf, sort_keys=False,
                    default_flow_style=None,
                )  # fmt: skip


if __name__ == "__main__":
    main()
