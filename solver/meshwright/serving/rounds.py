"""How long groups of requests take that follow each other through stages.

A group is on one stage at a time. With m groups a round takes as long as one group's
way through all stages, or as the slowest stage needs for all m of them, whichever is
longer: with fewer groups than stages, stages wait; that is the bubble (Agrawal et al.
2024, Sarathi-Serve, arXiv 2403.02310, section 3.2; virtual engines of vLLM).
"""

from __future__ import annotations

import math

from meshwright.plans.columns import Floats

SLACK = 1 + 1e-9
"""A wait of just the limit is short enough, whatever it rounds to."""


def round_s(stages_s: Floats, groups: int) -> float:
    """Return the seconds in which every group has passed every stage once."""
    return float(max(stages_s.sum(), groups * stages_s.max()))


def bubble(stages_s: Floats, groups: int) -> float:
    """Return the share of a round in which stages wait, on average."""
    busy_s = groups * float(stages_s.mean())
    return 1 - busy_s / round_s(stages_s, groups)


def wait_s(limit_ms: float | None) -> float:
    """Return how long a user may wait, seconds."""
    return math.inf if limit_ms is None else limit_ms * 1e-3 * SLACK
