"""Options that commands share, and the output of results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.reading.files import is_folder

if TYPE_CHECKING:
    from meshwright.report.tables import Section

LARGEST_SEED = 2**31 - 1
"""The largest seed that CP-SAT takes."""


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"
    markdown = "markdown"


FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write here, not to stdout.")
]
ProfileOption = Annotated[
    str,
    typer.Option(
        help="Efficiencies: a file of `meshwright calibrate`, or bundled: measured "
        "(fitted to published runs) or unfitted."
    ),
]

ReportOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the answer here as one HTML page with charts: step time, pipeline, "
        "memory, mesh, links, near plans, proof."
    ),
]

TraceOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the modelled step here as a trace that Perfetto opens "
        "(https://ui.perfetto.dev); see `meshwright compare-trace`."
    ),
]


def check_folder(folder: Path | None, option: str) -> None:
    """Refuse a folder that is not there, before any work.

    Raises:
        SpecError: names the option and the folder.
    """
    if folder is not None and not is_folder(folder):
        raise SpecError(f"{option} {printable(str(folder))}: no such folder")


def check_writable(output: Path | None, option: str = "--output") -> None:
    """Refuse an output file that cannot be written, before any work is done."""
    if output is not None and (is_folder(output) or not is_folder(output.parent)):
        reason = "is a directory" if is_folder(output) else "no such file or directory"
        raise SpecError(f"{option} {printable(str(output))}: {reason}")


def check_plot(plot: Path | None) -> None:
    """Refuse a plot that cannot be drawn or written, before any work is done."""
    from meshwright.report.chart import plot_library, plot_paths

    if plot is not None:
        plot_library()
        for path in plot_paths(plot):
            check_writable(path, "--plot")


def formatted(
    output_format: Format,
    sections: Callable[[], list[Section]],
    data: Callable[[], Any],
) -> str:
    """Return sections as text, or their data as JSON."""
    from meshwright.report.render import sections_as_markdown, sections_as_text

    if output_format is Format.json:
        return json.dumps(data(), indent=2) + "\n"
    if output_format is Format.markdown:
        return sections_as_markdown(sections())
    return sections_as_text(sections())


def tell(notes: Iterable[str]) -> None:
    """Print notes on stderr."""
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)


def write(text: str, output: Path | None, option: str = "--output") -> None:
    """Write text to a file, or to stdout if no file is given."""
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise SpecError(f"{option} {printable(str(output))}: {reason}") from None
