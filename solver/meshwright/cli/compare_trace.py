"""`meshwright compare-trace`: which part of the model is off, by a profiler's trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import (
    Format,
    FormatOption,
    OutputOption,
    check_writable,
    formatted,
    write,
)


def compare_trace(
    modelled: Annotated[
        Path, typer.Argument(help="The trace that `solve --trace` wrote.")
    ],
    real: Annotated[
        Path,
        typer.Argument(help="One rank's trace of torch.profiler: .json or .json.gz."),
    ],
    stage: Annotated[
        int | None,
        typer.Option(
            min=0, help="The rank's pipeline stage, from 0. Default: the busiest."
        ),
    ] = None,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Put the modelled step beside a profiler's trace, phase by phase."""
    check_writable(output)
    from meshwright.api.compare_traces import compare_traces
    from meshwright.report.trace_comparison import trace_sections

    told = compare_traces(modelled, real, stage=stage)
    text = formatted(output_format, lambda: trace_sections(told), told.to_dict)
    write(text, output)
