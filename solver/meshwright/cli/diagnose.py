"""`meshwright diagnose`: what slows a run down or stopped it, by its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import FOUND, UNDECIDED
from meshwright.cli.options import (
    ASK,
    BatchOption,
    ClusterOption,
    FormatOption,
    FrameworkOption,
    GpuOption,
    MachineOption,
    ModelOption,
    OutputOption,
    PrecisionOption,
    ProfileOption,
    SeqLenOption,
    VerboseOption,
)
from meshwright.cli.output import (
    Format,
    answered,
    check_writable,
    command_words,
    tell,
    write,
)
from meshwright.cli.progress import interruptible


def diagnose(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="The log of a run; - for stdin.")
    ],
    launch: Annotated[
        Path | None,
        typer.Option(help="What started it, for what the log does not say."),
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option(help="A YAML file, or a bundled spec's name, instead of options."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            help="Fields of the plan that ran and that nothing else says: 'zero=3'."
        ),
    ] = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    machine: MachineOption = None,
    count: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Machines. Default: as many as have the GPUs that ran.",
            rich_help_panel=ASK,
        ),
    ] = None,
    framework: FrameworkOption = None,
    seq_len: SeqLenOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    profile: ProfileOption = DEFAULT_PROFILE,
    verbose: VerboseOption = False,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say why a run is slow or died, by its log, and what to change."""
    check_writable(output)
    with interruptible() as interrupt:
        from meshwright.api.diagnose import diagnose as diagnose_log
        from meshwright.cli.progress import Progress

        notes: list[str] = []
        with Progress() as progress:
            progress.say("reading the log")
            told = diagnose_log(
                log,
                launch=launch,
                spec=spec,
                plan=plan,
                model=model,
                cluster=cluster,
                gpu=gpu,
                machine=machine,
                count=count,
                framework=framework,
                seq_len=seq_len,
                batch=batch,
                precision=precision,
                notes=notes,
                profile=profile,
                on_progress=progress.say,
                interrupt=interrupt,
            )
        if verbose:
            tell(notes)
        write(answered(output_format, told, command_words(log), verbose), output)
    if interrupt.is_asked:
        tell(["stopped by Ctrl-C; better plans may be left out"])
    raise typer.Exit(UNDECIDED if interrupt.is_asked else FOUND)
