"""The command line: parse, call, print, exit code.

Exit codes: 0 a plan was found, 1 none fits, 2 bad input, 3 stopped undecided. Data
goes to stdout, progress and notes to stderr. Heavy modules are imported when needed,
so that help and errors answer at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshwright import __version__
from meshwright.cli import (
    calibrate,
    compare,
    evidence,
    explain,
    gemm,
    imports,
    search,
    solve,
    topology,
)
from meshwright.cli.options import EXIT_CODES
from meshwright.errors import InternalError, MeshwrightError

BAD_INPUT = 2

SCREEN = 2_000
"""Characters of a message."""

app = typer.Typer(
    name="meshwright",
    help="Pick the fastest parallelism plan that fits a model on a GPU cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"meshwright {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    pass


VERBS = (
    solve.solve,
    explain.explain,
    compare.compare,
    search.search,
    gemm.gemm,
    topology.topology,
    evidence.evidence,
    calibrate.calibrate,
)

for verb in VERBS:
    app.command()(verb)
app.command("import")(imports.import_files)


def _on_a_screen(text: str) -> str:
    """Return a message that a name of a file, say, does not make longer than this."""
    return text if len(text) <= SCREEN else text[: SCREEN - 3] + "..."


def main() -> None:
    """Run the command line; errors become one message and an exit code."""
    try:
        app()
    except InternalError as error:
        print(f"internal error, please report it: {error}", file=sys.stderr)
        sys.exit(EXIT_CODES["unknown"])
    except MeshwrightError as error:
        print(f"error: {_on_a_screen(str(error))}", file=sys.stderr)
        sys.exit(BAD_INPUT)
