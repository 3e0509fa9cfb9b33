"""`meshwright diagnose`: what slows a run down or stopped it, by its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import FOUND, UNDECIDED
from meshwright.cli.options import (
    UNASKED,
    FormatOption,
    OutputOption,
    ProfileOption,
    VerboseOption,
    Words,
    asking,
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
from meshwright.errors import SpecError


@asking
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
    asked: Words = UNASKED,
    profile: ProfileOption = DEFAULT_PROFILE,
    verbose: VerboseOption = False,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say why a run is slow or died, by its log, and what to change."""
    check_writable(output)
    if asked.set:
        raise SpecError("--set: not beside a log; --spec may have any field")
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
                model=asked.model,
                cluster=asked.cluster,
                gpu=asked.gpu,
                machine=asked.machine,
                count=_whole(asked.count),
                framework=asked.framework,
                seq_len=asked.seq_len,
                batch=asked.batch,
                precision=asked.precision,
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


def _whole(count: str | None) -> int | None:
    """Return the machines that ran, None where it is not said.

    Raises:
        SpecError: their number cannot be read, or is left open.
    """
    from meshwright.loading.asked import count_of

    found = None if count is None else count_of(count)
    if isinstance(found, list | dict):
        raise SpecError(f"--count {count}: expected one number: that of what ran")
    return found
