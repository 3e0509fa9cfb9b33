"""`meshwright import`: a topology from what other tools print, a plan from launches."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshwright.cli.options import (
    OutputOption,
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
            help="nvidia_smi topo.txt, for one; of what starts training FILE alone.",
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Of the machine: a bundled name or a file.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="What a network's switches join, likewise.")
    ] = None,
    onto: Annotated[
        str | None, typer.Option(help="Topology that a log measured, likewise.")
    ] = None,
    op: Annotated[str | None, typer.Option(help="Test, if a log is silent.")] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=2, max=MOST_RANKS, help="GPUs, if a log is silent."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Make a topology of what other tools print, or a plan of what starts training."""
    check_writable(output)
    from meshwright.cli.import_files import Options, run

    made = run(words or [], Options(gpu, machine, onto, op, ranks))
    tell(made.notes)
    write(made.text, output)
    if made.sections:
        stream = sys.stdout if output else sys.stderr
        stream.write(section_text(made.sections, stream))
