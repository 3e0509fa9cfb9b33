"""Output of commands: sections and notes on the screen, files, pages and traces."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.reading.yaml_and_csv import is_folder
from meshwright.writing import unwritten, write_whole

if TYPE_CHECKING:
    from meshwright.plans.plan import Plan
    from meshwright.report.pages.answer import Drawn, ServingAnswer
    from meshwright.report.screen import Shown
    from meshwright.report.tables import Section
    from meshwright.results.result import Result
    from meshwright.spec.open_spec import OpenSpec
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec


Format = Literal["table", "json", "markdown"]
"""How results are printed."""


LEAST_COLUMNS = 40
"""Least columns of the layout; a narrower screen wraps lines."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Screen(NamedTuple):
    """Columns, None for files and pipes; and whether there are colours."""

    width: int | None
    is_coloured: bool


def screen(stream: TextIO) -> Screen:
    """Return the width and colours of the screen that shows a stream.

    `COLUMNS` goes before the size of the terminal. `NO_COLOR` (no-color.org) and
    `TERM=dumb` turn colours off.
    """
    is_terminal = stream.isatty()
    asked = os.environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() and int(asked) > 0 else None
    if width is None and is_terminal:
        width = _columns(stream)
    from meshwright.report.tables import WIDTH

    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if width is not None:
        width = min(max(width, LEAST_COLUMNS), WIDTH)
    return Screen(width, is_terminal and not plain)


def _columns(stream: TextIO) -> int | None:
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def without_colour(text: str) -> str:
    """Return text without codes of colours, for files."""
    return COLOUR.sub("", text)


def check_written(kind: str | None, given: Any, option: str) -> None:
    """Refuse an option whose file or folder cannot be written, before any work is done.

    Args:
        kind: `file`, `folder` or `plot`; None for an option that names nothing written.
        given: The path, or paths, or None where the option is not given.
        option: Its name.

    Raises:
        SpecError: names the option and the path; or a library that plots need.
    """
    paths: list[Path] = given if isinstance(given, list) else [given] * bool(given)
    for path in paths if kind else ():
        if kind == "folder":
            _check_folder(path, option)
        elif kind == "file":
            _check_file(path, option)
        else:
            from meshwright.report.chart import plot_library, plot_paths

            plot_library()
            for plot in plot_paths(path):
                _check_file(plot, option)


def _check_folder(folder: Path, option: str) -> None:
    """Refuse a folder that is not there and cannot be made."""
    there = next(
        (path for path in (folder, *folder.parents) if os.path.lexists(path)), None
    )
    if there is None or not is_folder(there):
        raise SpecError(f"{option} {printable(str(folder))}: not a directory")
    if not os.access(there, os.W_OK):
        raise SpecError(f"{option} {printable(str(folder))}: permission denied")


def _check_file(output: Path, option: str) -> None:
    """Refuse a file whose folder is not there: a name that is mistyped makes none."""
    named, parent = f"{option} {printable(str(output))}", output.parent
    if is_folder(output):
        raise SpecError(f"{named}: is a directory")
    try:
        _check_folder(parent, option)
    except SpecError as error:
        raise SpecError(f"{named}: {str(error).rpartition(': ')[2]}") from None
    if not is_folder(parent):
        missing = printable(str(parent))
        raise SpecError(f"{named}: there is no folder {missing}; make it first")


def show(
    sections: Callable[[], list[Section]],
    data: Callable[[], Any],
    output_format: Format,
    output: Path | None = None,
) -> None:
    """Print sections as text, or their data as JSON, or write them to a file."""
    from meshwright.report.tables import sections_as_markdown

    if output_format == "json":
        text = json.dumps(data(), indent=2) + "\n"
    elif output_format == "markdown":
        text = sections_as_markdown(sections())
    else:
        text = section_text(sections(), sys.stdout)
    write(text, output)


def answered(output_format: Format, answer: Shown, asked: str, is_verbose: bool) -> str:
    """Return an answer as text: one screen of it, or all.

    `asked` is the spec as the user named it, empty where a name does not repeat it.
    """
    from meshwright.report.screen import COLUMNS, full_sections, screen_sections
    from meshwright.report.tables import sections_as_markdown, sections_as_text

    if output_format == "json":
        return json.dumps(answer.to_dict(), indent=2) + "\n"
    seen = screen(sys.stdout)
    if is_verbose:
        sections, width = full_sections(answer), seen.width
    else:
        width = seen.width or COLUMNS
        sections = screen_sections(answer, asked, width)
    if output_format == "markdown":
        return sections_as_markdown(sections)
    return sections_as_text(sections, width, seen.is_coloured)


def command_words(*words: str | None) -> str:
    """Return words as a shell takes them; empty where one of them is missing."""
    known = [word for word in words if word is not None and word.isprintable()]
    return shlex.join(known) if len(known) == len(words) else ""


def section_text(sections: list[Section], stream: TextIO) -> str:
    """Return sections as text for the screen that a stream is shown on."""
    from meshwright.report.tables import sections_as_text

    seen = screen(stream)
    return sections_as_text(sections, seen.width, seen.is_coloured)


def folded(line: str, stream: TextIO) -> list[str]:
    """Return a line in pieces that fit the screen that a stream is shown on."""
    from meshwright.report.tables import wrapped

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
    write_bytes(without_colour(text).encode("utf-8"), output, option)


def write_bytes(data: bytes, output: Path, option: str) -> None:
    """Write a file whole, or leave the old one as it was."""
    make_folder_of(output, option)
    write_whole(data, output, option)


def make_folder_of(path: Path, option: str) -> None:
    """Make the folder of a file that is about to be written, if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise SpecError(f"{option} {printable(str(path))}: not a directory") from None
    except OSError as error:
        raise unwritten(path, option, error) from None


def write_report(
    spec: Spec | ServingSpec | OpenSpec,
    answer: Result,
    profile: str,
    path: Path | None,
) -> None:
    """Write the page of an answer, if one is asked for."""
    if path is None:
        return
    from meshwright.api.files import html_report
    from meshwright.spec.open_spec import OpenSpec

    if isinstance(spec, OpenSpec):
        tell(["--report: nothing is written: no choice has a plan"])
        return
    page = html_report(spec, _drawn(answer), profile=profile)
    write(page, path, "--report")


def _drawn(answer: Result) -> Drawn | ServingAnswer:
    from meshwright.report.pages.answer import Drawn, ServingAnswer

    assert isinstance(answer, Drawn | ServingAnswer)
    return answer


def write_trace(
    spec: Spec | ServingSpec | OpenSpec,
    plan: Plan | None,
    profile: str,
    path: Path,
) -> None:
    """Write the step of a plan of training; say so where there is no plan."""
    from meshwright.api.price import timeline
    from meshwright.report.simulation import trace_text
    from meshwright.spec.spec import Spec

    if plan is None or not isinstance(spec, Spec):
        tell(["--trace: nothing is written: there is no whole plan"])
        return
    write(trace_text(timeline(spec, plan, profile=profile)), path, "--trace")
