"""Fits the bundled profile to the runs in benchmarks/runs.

`python -m benchmarks.fit_profiles` writes profiles/measured.yaml: factors for every GPU
and framework, which runs they saw, and errors on sources left out; those of each kind
of model with runs/unfitted, which no fit sees. `memory` stays as it is, which `python
-m benchmarks.fit_memory` writes, so do `run_before` and `doubt`, which `python -m
benchmarks.doubt` does, and `names_published`. `python -m benchmarks.truth` judges them.
Takes three minutes of one core.
"""

from __future__ import annotations

from benchmarks import without_options
from benchmarks.bands import by_kind, errors_of, gpus_of
from benchmarks.fit_memory import rewrite
from benchmarks.runs_of import STRONG, UNFITTED, all_runs, priced_runs
from benchmarks.truth import as_shipped, unseen_errors
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
    judged = [one for one in as_shipped(new.priced) if one.is_timed]
    errors = ((one.one, one.time_error) for one in judged)
    kinds = by_kind([*zip(cases.runs, unseen.tolist(), strict=True), *errors])
    gpus = gpus_of([*cases.runs, *(one.one for one in judged)])
    fitted["kinds"] = tuple(errors_of(kinds, gpus))
    print(f"wrote {rewrite(DEFAULT_PROFILE, **fitted)}")


if __name__ == "__main__":
    without_options(__doc__)
    main()
