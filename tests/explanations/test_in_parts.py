"""Explanations of wide clusters, whose skeletons are looked at in parts."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

import meshwright as mw
from meshwright.cost.job import make_job
from meshwright.explanations.conflict import (
    NamedBits,
    any_skeleton_fits,
    correction_sets,
)
from meshwright.explanations.decisions import decisions_in
from meshwright.explanations.framework_rules import rules_behind
from meshwright.explanations.judged_plan import rank
from meshwright.planner import memory_fit
from meshwright.planner.memory_fit import MemoryFit
from meshwright.planner.nearest_miss import nearest_legal, nearest_miss
from meshwright.planner.rows import build_lattice
from tests.explanations.test_conflict import drawn_spec

WIDE = "gpt3-175b-1024xa100"
"""Its lattice has 589,588 skeletons."""


def told(spec: mw.Spec) -> dict[str, Any]:
    """Return what is said of a spec that looks at many skeletons."""
    job, names = make_job(spec), [one.rule for one in decisions_in(spec)]
    fits = any_skeleton_fits(spec)
    return {
        "fits": fits,
        "sets": correction_sets(spec, NamedBits(tuple(names))),
        "rules": () if fits else rules_behind(spec, names),
        "nearest": nearest_miss(job, build_lattice(job)),
        "legal": nearest_legal(job),
        "ranks": [rank(job, step_s) for step_s in (1.0, 20.0, 60.0, 1e6)],
    }


@pytest.mark.parametrize("seed", range(6))
def test_a_lattice_in_small_parts_tells_what_one_part_tells(seed: int) -> None:
    spec = drawn_spec(seed)
    whole = told(spec)
    with mock.patch.object(memory_fit, "FOUND_AT_ONCE", 150):
        assert told(spec) == whole


@pytest.mark.parametrize(
    ("pins", "memory_gib", "plan"),
    [
        ({}, None, "tp=8,pp=8,zero=1,micro_batch=1"),
        ({}, 1.0, ""),
        ({"tp": 8, "pp": 1, "zero": 0}, None, ""),
    ],
)
def test_few_skeletons_are_priced_at_once(
    pins: dict[str, int], memory_gib: float | None, plan: str
) -> None:
    """All at once took gigabytes: DeepSeek-V3 on 2,048 GPUs has 36 million."""
    spec = mw.load(WIDE, mw.Spec, pins=pins)
    if memory_gib is not None:
        spec = spec.having("limits", memory_gib=memory_gib)
    priced, price = list[int](), MemoryFit.__init__

    def noted(memory: MemoryFit, job: Any, lattice: Any) -> None:
        priced.append(len(lattice))
        price(memory, job, lattice)

    with mock.patch.object(MemoryFit, "__init__", noted):
        found = mw.explain(spec, plan) if plan else mw.explain(spec)
    assert found.fits == bool(plan)
    assert sum(priced) > 50_000
    # A part ends with a whole family; the search itself takes other parts.
    assert max(priced) < 3 * memory_fit.FOUND_AT_ONCE
