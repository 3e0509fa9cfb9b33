"""How much a solve looks at: filters and bounds that let more through cost only time.

The counts are those of one version, in `tests/data/work.yaml`. `python -m
tests.planner.test_work` writes today's: less is an improvement to keep, and more needs
a reason.
"""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
from meshwright.cost.profile import load_profile
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from tests.helpers.work import changed, counted, write
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
    "hardly waits": (SMALL | {"rules": [{"that": "parts.bubble <= 0.01"}]}, {}),
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

DATA = "work.yaml"


def work(name: str, patch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how much a solve of a case looks at."""
    source, sections = CASES[name]
    spec = mw.load(source, mw.Spec)
    for section, fields in sections.items():
        data = spec.model_dump(exclude_unset=True)
        data[section] = data.get(section, {}) | fields
        spec = mw.Spec.model_validate(data)
    options = Options(tolerance=0.02, **OPTIONS.get(name, {}))
    return counted(lambda: solve(spec, options), patch)


@pytest.mark.parametrize("name", CASES)
def test_as_much_is_looked_at_as_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed(DATA, name, work(name, monkeypatch)) == {}


if __name__ == "__main__":
    write(DATA, CASES, work)
