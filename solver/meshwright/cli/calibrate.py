"""`meshwright calibrate`: a profile fitted to measured runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.options import (
    ProfileOption,
    check_writable,
    section_text,
    write,
)
from meshwright.errors import SpecError
from meshwright.escape import printable


def calibrate(
    runs: Annotated[Path, typer.Argument(help="Measured runs, YAML or CSV.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The profile to write, YAML.")
    ],
    profile: ProfileOption = DEFAULT_PROFILE,
) -> None:
    """Fit efficiencies to measured runs, from those of a profile on."""
    check_writable(output)
    import yaml

    from meshwright.cli.progress import Progress
    from meshwright.cost.profile import load_profile
    from meshwright.evidence.calibrate import calibrate as fit_profile
    from meshwright.evidence.memory_spread import with_calibrated_memory
    from meshwright.evidence.price import price_runs
    from meshwright.evidence.read_runs import read_runs
    from meshwright.evidence.tables import profile_sections

    with Progress() as progress:
        priced, unpriced = price_runs(read_runs(runs))
        base = load_profile(profile)
        fitted = fit_profile(priced, base, progress.say)
        fitted = with_calibrated_memory(fitted, priced, base)
    if not fitted.measured:
        raise SpecError(f"{printable(str(runs))}: no run with a time can be priced")
    data = fitted.model_dump(mode="json")
    write(yaml.safe_dump(data, sort_keys=False), output)
    sections = profile_sections(fitted, len(unpriced))
    sys.stdout.write(section_text(sections, sys.stdout))
