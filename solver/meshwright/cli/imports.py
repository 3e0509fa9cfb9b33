"""`meshwright import`: topologies from other tools, plans from launches."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshwright.cli.options import (
    OutputOption,
)
from meshwright.cli.output import (
    check_writable,
    section_text,
    tell,
    write,
)

MOST_RANKS = 1_000_000


def import_files(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND FILE...",
            help="For example nvidia_smi topo.txt; FILE alone for a script or "
            "configuration that starts training.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="The GPU of the machine: a bundled name or a file."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            help="The machine that a network's switches join: a bundled name or a file."
        ),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option(
            help="The topology that a log measured: a bundled name or a file."
        ),
    ] = None,
    op: Annotated[
        str | None,
        typer.Option(help="The collective tested, if a log does not say it."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=2, max=MOST_RANKS, help="How many GPUs ran, if a log does not say it."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option(help="Name all options of a launch that have no effect.")
    ] = False,
    output: OutputOption = None,
) -> None:
    """Make a topology from output of other tools, or a plan from a launch script."""
    check_writable(output)
    from meshwright.api.import_files import Options, run

    made = run(words or [], Options(gpu, machine, onto, op, ranks, verbose or None))
    tell(made.notes)
    write(made.text, output)
    if made.sections:
        stream = sys.stdout if output else sys.stderr
        stream.write(section_text(made.sections, stream))
