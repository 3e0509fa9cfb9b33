"""`meshwright compare`: plans side by side, and where their order turns."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import FOUND, NONE_FITS
from meshwright.cli.options import (
    FormatOption,
    OutputOption,
    ProfileOption,
    ReportOption,
    SpecArgument,
)
from meshwright.cli.output import (
    Format,
    check_writable,
    formatted,
    tell,
    write,
    write_report,
)


def compare(
    spec: SpecArgument,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            help="A plan, as for explain; repeatable. Without: the best of each kind, "
            "in full on two GPUs."
        ),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(
            help="Find where the order turns: topology.levels[0].gb_s=8:900. On two "
            "GPUs without plans that is their link."
        ),
    ] = None,
    profile: ProfileOption = DEFAULT_PROFILE,
    report: ReportOption = None,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Put plans side by side, part by part."""
    check_writable(output)
    check_writable(report, "--report")
    from meshwright.api.load import load
    from meshwright.loading.vary import varied
    from meshwright.spec.spec import Spec

    notes: list[str] = []
    loaded = load(spec, Spec, notes=notes)

    from meshwright.api.options import read_asked

    plans = [(text, read_asked(text, loaded, notes)) for text in plan or []]
    chosen = varied(spec, loaded, vary, bool(plans))
    tell(notes)
    from meshwright.api.explain import compare as compare_plans
    from meshwright.cli.progress import Progress
    from meshwright.report.compare import compare_sections

    with Progress() as progress:
        found = compare_plans(
            loaded, plans, vary=chosen, profile=profile, on_progress=progress.say
        )
    text = formatted(output_format, lambda: compare_sections(found), found.to_dict)
    write(text, output)
    write_report(loaded, found, profile, report)
    raise typer.Exit(FOUND if found.fits else NONE_FITS)
