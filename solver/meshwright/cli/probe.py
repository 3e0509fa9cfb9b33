"""`meshwright probe`: the short runs that would tell most."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.options import (
    ProfileOption,
    check_folder,
    section_text,
    tell,
    write,
)


def probe(
    spec: Annotated[str, typer.Argument(help="A YAML file, or a bundled spec's name.")],
    count: Annotated[
        int, typer.Option("-k", "--count", min=1, max=50, help="How many runs.")
    ] = 5,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the files here. A folder."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Run on so many nodes. Default: all.")
    ] = None,
    profile: ProfileOption = DEFAULT_PROFILE,
) -> None:
    """Pick the short runs that tell most about which plan is best, and what fits."""
    check_folder(output, "--output")
    from meshwright.api.load import load
    from meshwright.api.options import read_profile
    from meshwright.calibration.probe import probes
    from meshwright.calibration.probe_report import probe_files, probe_sections
    from meshwright.cli.progress import Progress
    from meshwright.spec.spec import Spec

    notes: list[str] = []
    loaded = load(spec, Spec, notes=notes)
    tell(notes)
    with Progress() as progress:
        found = probes(loaded, read_profile(profile), count, nodes, progress.say)
    sys.stdout.write(section_text(probe_sections(found, output), sys.stdout))
    if output is not None:
        for file in probe_files(found):
            write(file.text, output / file.name)
