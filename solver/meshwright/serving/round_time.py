"""The time of a round, in which every group of requests passes every stage.

A group is on one stage at a time. With m groups a round takes as long as one group
needs for all stages, or as the slowest stage needs for all m groups, whichever is
longer: with fewer groups than stages, stages wait; that is the bubble (Agrawal et al.
2024, Sarathi-Serve, arXiv 2403.02310, section 3.2; virtual engines of vLLM).
"""

from __future__ import annotations

import math

from meshwright.plans.columns import Floats

SLACK = 1 + 1e-9
"""Factor on a limit, so that a wait of just the limit passes however it rounds."""


def round_s(stages_s: Floats, groups: int) -> float:
    """Return the seconds in which every group passes every stage once."""
    return float(max(stages_s.sum(), groups * stages_s.max()))


def bubble(stages_s: Floats, groups: int) -> float:
    """Return the mean share of a round for which stages wait."""
    busy_s = groups * float(stages_s.mean())
    return 1 - busy_s / round_s(stages_s, groups)


def wait_s(limit_ms: float | None) -> float:
    """Return the longest wait that a limit allows, seconds."""
    return math.inf if limit_ms is None else limit_ms * 1e-3 * SLACK
