"""`meshwright check`: specs and launch files of a repository, before a job starts."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.errors import BAD_INPUT, FOUND, NONE_FITS
from meshwright.cli.output import folded, tell
from meshwright.escape import printable

if TYPE_CHECKING:
    from meshwright.api.preflight import Finding


class Annotate(StrEnum):
    """Who reads the findings."""

    text = "text"
    github = "github"


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Files or folders; other kinds of files are skipped.",
        ),
    ],
    spec: Annotated[
        str | None,
        typer.Option(
            help="Judge the plans of launches on this spec: a name or a file."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Judge them on this machine, with the launch's model."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Beside --cluster: the model, if a launch does not say it."),
    ] = None,
    annotate: Annotated[
        Annotate,
        typer.Option(
            help="text: FILE:LINE: MESSAGE; github: annotations of a workflow."
        ),
    ] = Annotate.text,
) -> None:
    """Check specs and launch files: contradictions, illegal plans, memory."""
    from meshwright.api.preflight import Beside, check_file, files_in

    beside = Beside(spec, model, cluster)
    checked, findings = 0, []
    for path in files_in(paths):
        found = check_file(path, beside)
        if found is None:
            continue
        checked += 1
        for finding in found:
            line = _line(finding, annotate)
            is_text = annotate is Annotate.text
            print(*(folded(line, sys.stdout) if is_text else [line]), sep="\n")
        findings += found
    errors = [own for own in findings if own.level == "error"]
    tell([f"{checked} files checked, {len(errors)} errors"])
    if not errors:
        raise typer.Exit(FOUND)
    is_unreadable = any(own.is_unreadable for own in errors)
    raise typer.Exit(BAD_INPUT if is_unreadable else NONE_FITS)


def _line(finding: Finding, annotate: Annotate) -> str:
    """Return a finding in a line of text, or as a workflow command of GitHub.

    These escape percent signs and line ends; properties colons and commas too
    (github.com/actions/toolkit, packages/core/src/command.ts).
    """
    file, text = printable(finding.file), printable(finding.text)
    if annotate is Annotate.text:
        place = f"{file}:{finding.line}" if finding.line else file
        return f"{place}: {finding.level}: {text}"
    text, file = (own.replace("%", "%25") for own in (text, file))
    file = file.replace(":", "%3A").replace(",", "%2C")
    line = f",line={finding.line}" if finding.line else ""
    return f"::{finding.level} file={file}{line},title=Meshwright::{text}"
