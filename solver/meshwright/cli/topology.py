"""`meshwright topology`: a cluster told and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import (
    Format,
    FormatOption,
    OutputOption,
    check_plot,
    check_writable,
    formatted,
    make_folder_of,
    tell,
    write,
)


def topology(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="SPEC_OR_TOPOLOGY",
            help="A YAML file of a spec or a topology, or the name of a bundled one.",
        ),
    ],
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the cluster: NAME.png, NAME.html."),
    ] = None,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Show a cluster: levels, hosts, what two GPUs reach, what is broken."""
    check_writable(output)
    check_plot(plot)
    from meshwright.loading.load import load_cluster

    notes: list[str] = []
    loaded = load_cluster(cluster, notes)
    tell(notes)

    from meshwright.report.topology import topology_data, topology_sections
    from meshwright.report.topology_drawing import draw_topology

    text = formatted(
        output_format, lambda: topology_sections(loaded), lambda: topology_data(loaded)
    )
    if plot is not None:
        make_folder_of(plot, "--plot")
        draw_topology(loaded, plot)
    write(text, output)
