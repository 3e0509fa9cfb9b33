"""Fits the bundled profile to the runs in benchmarks/runs.

`python -m benchmarks.fit_profiles` writes profiles/measured.yaml: factors for every GPU
and framework, which runs they saw, and errors on sources left out. `memory` stays as it
is, which `python -m benchmarks.fit_memory` writes, so do `run_before` and `doubt`,
which `python -m benchmarks.doubt` does, and `names_published`. `python -m
benchmarks.truth` judges them. Takes two minutes of one core.
"""

from __future__ import annotations

from benchmarks import without_options
from benchmarks.fit_memory import rewrite
from benchmarks.runs_of import STRONG, priced_runs
from benchmarks.truth import unseen_errors
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import Profile
from meshwright.evidence.fit import Fit, profile_of
from meshwright.evidence.timed_runs import TimedRuns

KEPT = ("memory", "run_before", "doubt", "names_published")


def main() -> None:
    """Fit, judge and write."""
    cases = TimedRuns(priced_runs(STRONG))
    fit = Fit(cases, Profile())
    fitted = dict(profile_of(fit, unseen_errors(fit), "a source"))
    for name in KEPT:
        fitted.pop(name)
    print(f"wrote {rewrite(DEFAULT_PROFILE, **fitted)}")


if __name__ == "__main__":
    without_options(__doc__)
    main()
