"""Fits the bundled profile to the runs in benchmarks/runs.

`python -m benchmarks.fit_profiles` writes profiles/measured.yaml: factors for every GPU
and framework, which runs they saw, and errors on sources left out. `memory` stays as it
is, which `python -m benchmarks.fit_memory` writes, and so do `run_before` and `doubt`,
which `python -m benchmarks.doubt` does. `python -m benchmarks.truth` judges them. Takes
two minutes of one core.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from benchmarks.runs_of import STRONG, priced_runs
from benchmarks.truth import unseen_errors
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import Profile, load_profile
from meshwright.evidence.fit import Fit, profile_of
from meshwright.evidence.timed_runs import TimedRuns

PROFILE = Path(__file__).parents[1] / "profiles" / f"{DEFAULT_PROFILE}.yaml"

HEAD = """\
# Factors on the default efficiencies, fitted to the runs in benchmarks/runs by
# `python -m benchmarks.fit_profiles`. `left_out`: errors on sources not in the fit.
"""


def main() -> None:
    """Fit, judge and write."""
    cases = TimedRuns(priced_runs(STRONG))
    fit = Fit(cases, Profile())
    errors = unseen_errors(fit)
    before = load_profile(DEFAULT_PROFILE)
    kept = {name: getattr(before, name) for name in ("memory", "run_before", "doubt")}
    profile = profile_of(fit, errors, "a source").model_copy(update=kept)
    data = profile.model_dump(mode="json", exclude_none=True)
    PROFILE.write_text(HEAD + yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    print(f"wrote {PROFILE}")


if __name__ == "__main__":
    main()
