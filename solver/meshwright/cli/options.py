"""Options that commands share, and the output of results."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from meshwright.api.arguments import LARGEST_SEED as LARGEST_SEED
from meshwright.cli.terminal import screen, without_colour
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.reading.files import is_folder

if TYPE_CHECKING:
    from meshwright.report.tables import Section


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
    """Refuse a folder that cannot be made, before any work.

    Raises:
        SpecError: names the option and the folder.
    """
    if folder is None:
        return
    there = next((own for own in (folder, *folder.parents) if _is_there(own)), None)
    if there is None or not is_folder(there):
        raise SpecError(f"{option} {printable(str(folder))}: not a directory")
    if not os.access(there, os.W_OK):
        raise SpecError(f"{option} {printable(str(folder))}: permission denied")


def _is_there(path: Path) -> bool:
    """Return whether there is such a file or folder; no name is too long to ask."""
    return os.path.lexists(path)


def check_writable(output: Path | None, option: str = "--output") -> None:
    """Refuse an output file that cannot be written, before any work is done.

    Folders that are missing are made once there is something to write.
    """
    if output is None:
        return
    if is_folder(output):
        raise SpecError(f"{option} {printable(str(output))}: is a directory")
    try:
        check_folder(output.parent, option)
    except SpecError as error:
        reason = str(error).rpartition(": ")[2]
        raise SpecError(f"{option} {printable(str(output))}: {reason}") from None


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
    from meshwright.report.render import sections_as_markdown

    if output_format is Format.json:
        return json.dumps(data(), indent=2) + "\n"
    if output_format is Format.markdown:
        return sections_as_markdown(sections())
    return section_text(sections(), sys.stdout)


def section_text(sections: list[Section], stream: TextIO) -> str:
    """Return sections as text for the screen that a stream is shown on."""
    from meshwright.report.render import sections_as_text

    seen = screen(stream)
    return sections_as_text(sections, seen.width, seen.is_coloured)


def folded(line: str, stream: TextIO) -> list[str]:
    """Return a line in pieces that fit the screen that a stream is shown on."""
    from meshwright.report.narrow import wrapped

    width = screen(stream).width
    return [line] if width is None else wrapped(line, width)


def tell(notes: Iterable[str]) -> None:
    """Print notes on stderr."""
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)


def write(text: str, output: Path | None, option: str = "--output") -> None:
    """Write text to a file, or to stdout if no file is given."""
    if output is None:
        sys.stdout.write(text)
        return
    make_folder_of(output, option)
    try:
        output.write_text(without_colour(text), encoding="utf-8")
    except OSError as error:
        raise _unwritten(output, option, error) from None


def make_folder_of(path: Path, option: str) -> None:
    """Make the folder of a file that is about to be written, if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise SpecError(f"{option} {printable(str(path))}: not a directory") from None
    except OSError as error:
        raise _unwritten(path, option, error) from None


def _unwritten(path: Path, option: str, error: OSError) -> SpecError:
    reason = (error.strerror or "cannot be written").lower()
    return SpecError(f"{option} {printable(str(path))}: {reason}")
