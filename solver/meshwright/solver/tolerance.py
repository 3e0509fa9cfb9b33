"""What a simpler plan may take more than the fastest, and why so much."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.cost.profile import Profile
from meshwright.spec.objective import DEFAULT_OBJECTIVE
from meshwright.spec.spec import Spec


class Tolerance(NamedTuple):
    """A share of the fastest step time, and where it comes from."""

    share: float
    source: str


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
