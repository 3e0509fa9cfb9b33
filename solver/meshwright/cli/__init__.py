"""The command line: parse, call, print, exit code.

Data goes to stdout, progress and notes to stderr. Heavy modules are imported when
needed, so that help and errors answer at once.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from copy import copy
from typing import Annotated

import typer

from meshwright import __version__
from meshwright.cli import files, init, measured, rare_verbs, search, solve
from meshwright.cli.errors import (
    BAD_INPUT,
    FAULT,
    IN_WORDS,
    OUT_OF_OUR_HANDS,
    UNREAD,
    Commands,
    complain,
    complain_of_a_fault,
    leave_unwritten,
    open_closed,
)
from meshwright.cli.options import with_options
from meshwright.errors import InternalError, MeshwrightError

TO_BEGIN = "To begin: meshwright solve llama3-8b-2xh100-nvlink, or meshwright init."

app = typer.Typer(
    cls=Commands,
    name="meshwright",
    help="Pick the fastest parallelism plan that fits a model on a GPU cluster.",
    epilog=f"{TO_BEGIN}\n\n{IN_WORDS}",
    no_args_is_help=True,
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


VERBS: dict[str, Callable[..., None]] = {
    "solve": solve.solve,
    "explain": solve.explain,
    "compare": solve.compare,
    "diagnose": measured.diagnose,
    "export": files.export,
    "import": files.import_files,
    "search": search.search,
    "calibrate": measured.calibrate,
    "init": init.init,
    "ui": rare_verbs.ui,
}
"""The verbs that most users need, in the order of `--help`."""

RARE_VERBS: dict[str, Callable[..., None]] = {
    "check": files.check,
    "verify": rare_verbs.verify,
    "mcp": rare_verbs.mcp,
    "simulate": rare_verbs.simulate,
    "topology": rare_verbs.topology,
    "probe": rare_verbs.probe,
    "evidence": rare_verbs.evidence,
    "compare-trace": rare_verbs.compare_trace,
    "gemm": rare_verbs.gemm,
    "schema": rare_verbs.schema,
}
"""The verbs of the second group of `--help`."""

EPILOGS = {"calibrate": measured.FIELDS}
"""By verb, the text that its help shows below the options."""

for name, verb in VERBS.items():
    app.command(name, epilog=EPILOGS.get(name))(with_options(name, verb))
for name, verb in RARE_VERBS.items():
    app.command(name, rich_help_panel="More commands")(with_options(name, verb))


COMPLETION = "_MESHWRIGHT_COMPLETE"
"""Set by shells that ask for completions, or for the script that does."""


def _as_typer_asks() -> None:
    """Turn click's way to ask for completion, `bash_source`, into typer's."""
    shell, _, instruction = os.environ.get(COMPLETION, "").partition("_")
    if instruction in {"source", "complete"}:
        os.environ[COMPLETION] = f"{instruction}_{shell}"


def asked_commands() -> typer.Typer:
    """Return the command that is asked for, or all where none is named first.

    Typer makes the options of all commands that it has, ten times what one needs.
    """
    verb = next(iter(sys.argv[1:]), "")
    if verb not in VERBS | RARE_VERBS or COMPLETION in os.environ:
        return app
    alone = copy(app)
    alone.registered_commands = [
        command for command in app.registered_commands if command.name == verb
    ]
    return alone


def _run() -> None:
    """Run the command line, and write out all that it has printed."""
    try:
        asked_commands()()
    finally:
        sys.stdout.flush()


def main() -> None:
    """Run the command line; errors become one message and an exit code."""
    open_closed()
    _as_typer_asks()
    try:
        _run()
    except InternalError as error:
        complain_of_a_fault(error)
        sys.exit(FAULT)
    except MeshwrightError as error:
        complain(f"error: {error}")
        sys.exit(BAD_INPUT)
    except OSError as error:
        if error.errno not in OUT_OF_OUR_HANDS:
            complain_of_a_fault(error)
            sys.exit(FAULT)
        leave_unwritten()
        if error.errno == errno.EPIPE:  # Nobody reads on, as behind `| head`.
            sys.exit(UNREAD)
        reason = (error.strerror or "cannot be written").lower()
        complain(f"error: {error.filename or 'standard output'}: {reason}")
        sys.exit(BAD_INPUT)
    except Exception as error:  # Any other error is a fault of Meshwright.
        if isinstance(error.__cause__, KeyboardInterrupt):
            # Python 3.11 raises a RuntimeError from it while it makes a class.
            raise error.__cause__ from None
        complain_of_a_fault(error)
        sys.exit(FAULT)
