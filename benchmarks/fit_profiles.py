"""Fits the bundled profile to the runs in benchmarks/runs.

`python -m benchmarks.fit_profiles` writes profiles/measured.yaml: factors for every GPU
and framework, which runs they saw, and errors on sources left out. Takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from benchmarks.runs_of import STRONG, priced_runs
from meshwright.evidence.calibrate import calibrate
from meshwright.profile import DEFAULT, Profile

PROFILE = Path(__file__).parents[1] / "profiles" / f"{DEFAULT}.yaml"

HEAD = """\
# Factors on the default efficiencies, fitted to the runs in benchmarks/runs by
# `python -m benchmarks.fit_profiles`. `left_out`: errors on sources not in the fit.
"""


def main() -> None:
    """Fit and write."""
    profile = calibrate(priced_runs(STRONG), Profile(), print, workers=-1)
    data = profile.model_dump(mode="json", exclude_none=True)
    PROFILE.write_text(HEAD + yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    print(f"wrote {PROFILE.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
