"""How much a solve looks at: filters and bounds that let more through cost only time.

The counts are those of one version. `python -m tests.planner.test_work` prints today's:
less is an improvement to note here, and more needs a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cpsat.ortools import cp_model
from meshwright.planner import narrow
from meshwright.planner.candidates import Pruned
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
}
"""A spec, and what is set in it."""

OPTIONS: dict[str, dict[str, Any]] = {
    "cube": {"near": 0.02},
    "experts": {"is_by_kind": True},
    "pinned": {"top": 3},
}


COUNTED = (
    "listed", "measured", "placed", "survivors", "candidates", "near", "open",
    "without_plan", "models", "constraints", "variables",
)  # fmt: skip

MOST: dict[str, tuple[int, ...]] = {
    "whole lattice": (0, 0, 1647, 487, 1647, 1647, 407, 0, 3, 5799, 4170),
    "cube": (212, 962, 1090, 2, 4, 64, 0, 0, 2, 84, 196),
    "busy cube": (424, 1535, 4385, 1254, 7816, 7867, 0, 7812, 3, 31418, 7980),
    "degraded": (6443, 64, 195, 2, 7, 22, 0, 0, 2, 82, 82),
    "tight": (3206, 0, 52, 124, 124, 124, 156, 0, 4, 331, 632),
    "experts": (1385, 922, 648, 1402, 1402, 1424, 4709, 0, 15, 1106, 4926),
    "wide": (3084, 1466, 390, 886, 886, 910, 11320, 0, 5, 723, 4720),
    "pinned": (0, 0, 776, 445, 776, 776, 7140, 0, 8, 6606, 6480),
    "unlike": (616, 600, 1055, 596, 968, 968, 21696, 0, 15, 4113, 4649),
    "waits": (64, 0, 427, 427, 427, 427, 0, 175, 3, 90, 927),
    "leading": (1522, 1905, 591, 1041, 1041, 1100, 25261, 0, 5, 9725, 5670),
    "bubbles": (1756, 0, 440, 1448, 1448, 1448, 931, 0, 4, 356, 5928),
}


SLACK = 1.25
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
        pruning = self._pruning(narrow.prune)
        patch.setattr("meshwright.planner.answer.prune", pruning)

    def _count(self, owner: Any, name: str, of: Callable[..., dict[str, int]]) -> None:
        before = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            self.counts.update(of(*given))
            return before(*given, **named)

        self._patch.setattr(owner, name, counted)

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
    found = work(name, monkeypatch)
    before = dict(zip(COUNTED, MOST[name], strict=True))
    more = {of: n for of, n in found.items() if n > SLACK * before[of]}
    assert not more, before


if __name__ == "__main__":
    for case in CASES:
        with pytest.MonkeyPatch.context() as patched:
            print(f'    "{case}": {(*work(case, patched).values(),)},')
