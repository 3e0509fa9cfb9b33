"""Best plans of specs, without what answers tell beside them."""

from __future__ import annotations

import meshwright as mw
from meshwright import DEFAULT_PROFILE
from meshwright.api.options import read_profile
from meshwright.planner.options import Options, tolerance_of
from meshwright.planner.solve import solve


def best_of(spec: mw.Spec) -> mw.PricedPlan | None:
    """Return the plan that `meshwright.solve` recommends, if any fits.

    It also prices every switch on that plan, which takes as long as a small solve.
    """
    profile = read_profile(DEFAULT_PROFILE)
    tolerance = tolerance_of(spec, profile).share
    options = Options(tolerance=tolerance, profile=profile, has_near_miss=False)
    return solve(spec, options).best
