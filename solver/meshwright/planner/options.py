"""How to solve a spec: limits of time and effort, and what the outcome holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meshwright.cost.profile import Profile
from meshwright.deadline import Interrupt
from meshwright.planner.integer_costs import TICK_S
from meshwright.spec.goals import DEFAULT_OBJECTIVE
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec

PROVEN_WITHIN = 0.1
"""Share over the fastest step time up to which the best plans at other degrees, and
with other techniques, are proven on large clusters."""


@dataclass(frozen=True)
class Options:
    """How to solve a spec: limits of time and effort, and what the outcome holds."""

    time_limit_s: float = np.inf
    seed: int = 0
    workers: int = 1
    top: int = 1
    """How many plans to return, best first; they differ in more than the mesh."""
    tolerance: float = 0.0
    """Share of the fastest step time that may be given up for a simpler plan."""
    tolerance_from: str = ""
    """Where the tolerance comes from."""
    near: float = 0.0
    """Share of the fastest step time within which to find every plan; 0 for none."""
    is_by_kind: bool = False
    """Whether to find the best plan of each set of techniques: TP, PP, DP, TP + DP."""
    kinds_within: float = np.inf
    """Share over the fastest step time up to which these plans are proven."""
    shows_model: bool = False
    """Whether to tell the model that CP-SAT solved."""
    is_safety: bool = False
    """Whether to find the best plans at two other risks of running out of memory."""
    known_s: float = np.inf
    """Step time of a plan that is known already: slower ones may be left out.

    Where that leaves none, the outcome is `infeasible`, without a nearest miss.
    """
    most_effort: float = np.inf
    """Deterministic seconds that CP-SAT may take, equal on every machine."""
    is_doubted: bool = False
    """Whether the plan of the least doubted step is looked for in place of the fastest.

    Bounds and `known_s` are then of doubted steps. Within a tolerance of the least one,
    the best plan is the simplest, as without this option.
    """
    is_brief: bool = False
    """Whether to leave out rival, error band, runner-up, simpler and near plans."""
    has_near_miss: bool = True
    """Whether to look for the nearest miss where no plan fits."""
    is_pruning: bool = True
    """Whether bounds exclude skeletons; else CP-SAT gets all that fit in memory."""
    profile: Profile = field(default_factory=Profile)
    """Fitted efficiencies and their errors on measured runs."""
    on_progress: Callable[[str], None] = lambda _: None
    interrupt: Interrupt = field(default_factory=Interrupt)
    """Ends the solve as the time limit would."""

    @property
    def is_by_doubt(self) -> bool:
        """Return whether plans that are solved for are compared by doubted steps.

        They are where one would be recommended by its doubted step.
        """
        return self.is_doubted or self.tolerance > 0

    @property
    def known_ticks(self) -> float:
        """Return the step time of the known plan in ticks, infinite without one."""
        return self.known_s / TICK_S


class Tolerance(NamedTuple):
    """A share of the fastest step time, and where it comes from."""

    share: float
    source: str


NO_TOLERANCE = Tolerance(0.0, "")


def tolerance_asked(spec: Spec | OpenSpec | ServingSpec, profile: Profile) -> Tolerance:
    """Return the tolerance of a question, by its first choice; serving has none."""
    if isinstance(spec, ServingSpec):
        return NO_TOLERANCE
    one = spec.choices[0] if isinstance(spec, OpenSpec) else spec
    return tolerance_of(one, profile)


def tolerance_of(spec: Spec, profile: Profile) -> Tolerance:
    """Return the tolerance that a spec asks for, or else that of its class.

    Plans that are nearer to each other than the regret of predictions cannot be told
    apart: so much was lost, in half of the groups of measured runs that are alike, by
    picking the run predicted to be fastest.
    """
    if "objective" in spec.model_fields_set:
        return Tolerance(spec.objective.tolerance, "the objective of the spec")
    least, ranking = DEFAULT_OBJECTIVE.tolerance, profile.ranking_of(spec)
    models = "models with experts" if spec.model.moe else "dense models"
    runs = f"{spec.framework} on {models}"
    if ranking is None:
        return Tolerance(least, f"the default: no ranked runs of {runs} are known")
    told = (
        f"the ranking error of {runs}, {ranking.regret:.1%} "
        f"(median of {ranking.groups} groups of runs that no fit had seen)"
    )
    if ranking.regret > least:
        return Tolerance(ranking.regret, told)
    return Tolerance(least, f"the default, which is not below {told}")
