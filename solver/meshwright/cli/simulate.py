"""`meshwright simulate`: steps of a plan with jitter, slow GPUs and failures."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.exit_codes import NONE_FITS
from meshwright.cli.options import (
    LARGEST_SEED,
    Format,
    FormatOption,
    OutputOption,
    ProfileOption,
    ReportOption,
    check_writable,
    formatted,
    tell,
    write,
)
from meshwright.cli.report import write_report


def simulate(
    spec: Annotated[str, typer.Argument(help="A YAML file, or a bundled spec's name.")],
    plan: Annotated[
        str | None,
        typer.Option(help="A plan, as for explain. Without: the best one."),
    ] = None,
    jitter: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Standard deviation of a GPU's compute time of a task, as a share. "
            "Default: the spec's run.straggler.jitter, else 0.02.",
        ),
    ] = None,
    slow_gpus: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of GPUs that are slow in a step."),
    ] = 0.0,
    slowdown: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=100.0,
            help="How much slower their compute is, as a share. Default: the spec's "
            "run.straggler.slowdown, else 0.1.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, max=100_000, help="Steps to simulate.")
    ] = 1_000,
    days: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=3650.0,
            help="Useful days of the runs with failures, if the spec's run says how "
            "often GPUs fail.",
        ),
    ] = 30.0,
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="Of the random numbers.")
    ] = 0,
    profile: ProfileOption = DEFAULT_PROFILE,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
    report: ReportOption = None,
) -> None:
    """Simulate steps of a plan with jitter, slow GPUs and failures."""
    check_writable(output)
    check_writable(report, "--report")
    from meshwright.api.asked_text import read_asked
    from meshwright.api.load import load
    from meshwright.spec.spec import Spec

    notes: list[str] = []
    loaded = load(spec, Spec, notes=notes)
    pins = read_asked(plan, loaded, notes) if plan is not None else None
    tell(notes)
    from meshwright.api.simulate import NoPlanError
    from meshwright.api.simulate import simulate as simulate_spec
    from meshwright.cli.progress import Progress
    from meshwright.report.simulation import simulation_sections

    try:
        with Progress() as progress:
            told = simulate_spec(
                loaded,
                pins,
                jitter=jitter,
                slow_gpus=slow_gpus,
                slowdown=slowdown,
                samples=samples,
                seed=seed,
                days=days,
                profile=profile,
                on_progress=progress.say,
            )
    except NoPlanError as error:
        tell([str(error)])
        raise typer.Exit(NONE_FITS) from None
    write_report(loaded, told, profile, report)
    text = formatted(output_format, lambda: simulation_sections(told), told.to_dict)
    write(text, output)
