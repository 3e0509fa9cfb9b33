"""How to solve, beside what to solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from meshwright.cost.profile import Profile
from meshwright.deadline import Interrupt


@dataclass(frozen=True)
class Options:
    """How to solve, beside what to solve."""

    time_limit_s: float = np.inf
    seed: int = 0
    workers: int = 1
    top: int = 1
    """How many plans to return, best first; they differ in more than the mesh."""
    is_by_kind: bool = False
    """Whether to prove the best plan of each kind (TP, PP, DP and their mixtures)."""
    most_effort: float = np.inf
    """Deterministic seconds that CP-SAT may take, the same on every machine."""
    is_brief: bool = False
    """Whether to leave out what says how sure one answer is: rival and runner-up."""
    is_pruning: bool = True
    """Whether bounds leave out skeletons; without, CP-SAT gets all that fit."""
    profile: Profile = field(default_factory=Profile)
    """Fitted efficiencies and how far they lay off; the defaults if none is given."""
    on_progress: Callable[[str], None] = lambda _: None
    interrupt: Interrupt = field(default_factory=Interrupt)
    """Brings on the end of the time limit."""
