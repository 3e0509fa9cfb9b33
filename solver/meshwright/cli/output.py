"""What commands print and write: answers, notes, files, and progress until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

import typer

from meshwright.cli.errors import KILLED, UNDECIDED
from meshwright.deadline import Interrupt
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

    `asked` is the spec as the user named it, empty where that repeats no question.
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
    spec: Spec | ServingSpec | OpenSpec, answer: Result, profile: str, path: Path | None
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
    spec: Spec | ServingSpec | OpenSpec, plan: Plan | None, profile: str, path: Path
) -> None:
    """Write the step of a plan of training; say so where there is no plan."""
    from meshwright.api.price import timeline
    from meshwright.report.simulation import trace_text
    from meshwright.spec.spec import Spec

    if plan is None or not isinstance(spec, Spec):
        tell(["--trace: nothing is written: there is no whole plan"])
        return
    write(trace_text(timeline(spec, plan, profile=profile)), path, "--trace")


_COUNT = re.compile(r"([\d,]+) of ([\d,]+)")

_COUNTED_DOWN = ("to bound", "left")
"""Last words of lines whose count goes down to 0."""

LEAST_RATE_S = 1.0
"""Seconds before a rate is used to estimate the time left."""


class TimeLeft:
    """Follows the counts in lines of progress, for example `3 of 40 cases`."""

    def __init__(self) -> None:
        """Start without a count."""
        self._whole = 0
        self._first = 0.0
        self._since_s = 0.0

    def seconds(self, text: str, now_s: float) -> float | None:
        """Return the seconds left by the rate so far; None if there is none yet.

        A count of something else, or one that falls back, starts anew.
        """
        found = _COUNT.search(text)
        if found is None:
            self._whole = 0
            return None
        count, whole = (int(number.replace(",", "")) for number in found.groups())
        done = float(whole - count if text.endswith(_COUNTED_DOWN) else count)
        if whole != self._whole or done < self._first:
            self._whole, self._first, self._since_s = whole, done, now_s
        passed_s = now_s - self._since_s
        if done <= self._first or passed_s < LEAST_RATE_S:
            return None
        return passed_s * (whole - done) / (done - self._first)


def duration_text(seconds: float) -> str:
    """Return seconds as text, rounded as far as an estimate deserves."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


DELAY_S = 1.0
"""Seconds before progress is shown."""


class Progress:
    """A spinner on a terminal, single lines elsewhere; silent for the first second.

    If the text has a count, the spinner says how much time is left.
    """

    def __init__(self) -> None:
        """Prepare the timer that starts to show progress."""
        self._text = ""
        self._left = TimeLeft()
        self._left_s: float | None = None
        self._status: Any = None
        self._is_late = False
        self._is_over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(DELAY_S, self._start)
        self._timer.daemon = True

    def say(self, text: str) -> None:
        """Set the text that is shown."""
        with self._lock:
            self._text = printable(text)
            self._left_s = self._left.seconds(self._text, time.monotonic())
            if self._status is not None:
                self._status.update(self._shown)
            elif self._is_late:
                print(self._text, file=sys.stderr)

    @property
    def _shown(self) -> Any:
        """Return the text for rich, which reads markup in a plain string."""
        from rich.text import Text

        told = "" if self._left_s is None else f", {duration_text(self._left_s)} left"
        return Text(self._text + told)

    def _start(self) -> None:
        """Begin to show progress, unless the command has ended."""
        with self._lock:
            if self._is_over:
                return
            self._is_late = True
            if not sys.stderr.isatty():
                print(self._text, file=sys.stderr)
                return
            from rich.console import Console

            self._status = Console(stderr=True).status(self._shown)
            self._status.start()

    def __enter__(self) -> Progress:
        """Start the timer."""
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._status is not None:
                self._status.stop()


SHOW_CURSOR = "\x1b[?25h"
"""Escape sequence that restores a terminal after a spinner."""


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Yield the interrupt that the first Ctrl-C sets.

    Code that does not look at the interrupt is ended at once.

    Raises:
        Exit: it was ended before there was anything to show.
    """
    interrupt = Interrupt()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if interrupt.is_asked:
            _end_at_once()
        interrupt.is_asked = True
        if not interrupt.is_heeded:
            raise KeyboardInterrupt

    with _handled_by(handle):
        try:
            yield interrupt
        except KeyboardInterrupt:
            print("stopped: nothing was found yet", file=sys.stderr)
            raise typer.Exit(UNDECIDED) from None


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a function handle Ctrl-C; only the main thread can do so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once() -> None:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), SHOW_CURSOR.encode())
    os._exit(KILLED)
