"""Fits the bundled profile to the runs in benchmarks/runs.

`python -m benchmarks.fit_profiles` writes profiles/measured.yaml: factors for every GPU
and framework, which runs they saw, and errors on sources left out; those of each kind
of model with runs/unfitted, which no fit sees. `memory` stays as it is, which `python
-m benchmarks.fit_memory` writes, so do `run_before` and `doubt`, which `python -m
benchmarks.doubt` does, and `names_published`. `python -m benchmarks.truth` judges them.
Takes three minutes of one core.
"""

from __future__ import annotations

import math

from benchmarks import without_options
from benchmarks.bands import by_kind, errors_of
from benchmarks.fit_memory import rewrite
from benchmarks.runs_of import STRONG, UNFITTED, all_runs, priced_runs, timed
from benchmarks.truth import unseen_errors
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import Profile, load_profile
from meshwright.evidence.fit import Fit, profile_of
from meshwright.evidence.timed_runs import TimedRuns

KEPT = ("memory", "run_before", "doubt", "names_published")


def main() -> None:
    """Fit, judge and write."""
    cases = TimedRuns(priced_runs(STRONG))
    fit = Fit(cases, Profile())
    unseen = unseen_errors(fit)
    fitted = dict(profile_of(fit, unseen, "a source"))
    for name in KEPT:
        fitted.pop(name)
    new = all_runs(UNFITTED, load_profile(DEFAULT_PROFILE).model_copy(update=fitted))
    errors = [
        (one, math.log(one.step_s / (one.run.step_s or math.nan)))
        for one in timed(new.priced)
    ]
    kinds = by_kind([*zip(cases.runs, unseen.tolist(), strict=True), *errors])
    fitted["kinds"] = tuple(errors_of(kinds))
    print(f"wrote {rewrite(DEFAULT_PROFILE, **fitted)}")


if __name__ == "__main__":
    without_options(__doc__)
    main()
