"""Repairs where whether there is a plan is told, and one outcome stands for all."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import meshwright as mw
from meshwright.planner.families import Prepared
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.spec.spec import Spec

LONE = "gpt-1.3b-2x3090-nvlink"

Has = Callable[[Spec], bool]


@cache
def outcome() -> Outcome:
    return solve(mw.load(LONE, mw.Spec))


def solved(_spec: Spec, _prepared: Prepared | None = None) -> Outcome:
    return outcome()
