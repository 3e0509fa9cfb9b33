"""The command line: parse, call, print, exit code.

Exit codes: 0 a plan was found, 1 none fits, 2 bad input, 3 stopped undecided. Data
goes to stdout, progress and notes to stderr. Heavy modules are imported when needed,
so that help and errors answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshwright import __version__
from meshwright.errors import InternalError, MeshwrightError, SpecError

EXIT_CODES = {"optimal": 0, "feasible": 0, "infeasible": 1, "unknown": 3}
BAD_INPUT = 2
MOST_GPUS_BY_KIND = 8
"""Clusters up to this size show the best plan of every kind unasked."""

app = typer.Typer(
    name="meshwright",
    help="Pick the fastest parallelism plan that fits a model on a GPU cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
MEASURED = "measured"


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


@app.command()
def solve(
    spec: Annotated[str, typer.Argument(help="A YAML file, or a bundled spec's name.")],
    pin: Annotated[
        list[str] | None,
        typer.Option(help="Fix a plan field, such as tp=4 or 'pp={max: 8}'."),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, max=100, help="Show the K best plans.")
    ] = 1,
    by_kind: Annotated[
        bool | None,
        typer.Option(
            "--by-kind/--no-by-kind",
            help="Prove the best plan of each kind: TP, PP, DP/ZeRO and mixtures. "
            "Default: up to 8 GPUs.",
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop after so many seconds with bound and gap."),
    ] = None,
    profile: ProfileOption = MEASURED,
    seed: Annotated[int, typer.Option(min=0, help="Seed of CP-SAT.")] = 0,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Threads of CP-SAT; same answer for any.")
    ] = 1,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Find the fastest plan that fits, and prove it."""
    from meshwright.spec.load import load_spec

    _check_writable(output)
    notes: list[str] = []
    loaded = load_spec(spec, pin, notes)
    _tell(notes)
    is_small = loaded.cluster.gpus <= MOST_GPUS_BY_KIND

    from meshwright.profile import load_profile
    from meshwright.progress import Progress
    from meshwright.solve import Options
    from meshwright.solve import solve as solve_spec

    with Progress() as progress:
        options = Options(
            time_limit_s=float("inf") if time_limit is None else time_limit,
            seed=seed,
            workers=workers,
            top=top,
            is_by_kind=is_small if by_kind is None else by_kind,
            profile=load_profile(profile),
            on_progress=progress.say,
        )
        outcome = solve_spec(loaded, options)
    from meshwright.report import render

    text = {
        Format.table: render.as_text,
        Format.markdown: render.as_markdown,
        Format.json: render.as_json,
    }[output_format](loaded.title, outcome)
    _write(text, output)
    raise typer.Exit(EXIT_CODES[outcome.status])


@app.command()
def evidence(
    runs: Annotated[Path, typer.Argument(help="Measured runs, YAML or CSV.")],
    weak: Annotated[
        list[str] | None,
        typer.Option(help="A source_id to report apart, in no average; repeatable."),
    ] = None,
    profile: ProfileOption = MEASURED,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw predicted over measured times: NAME.png, NAME.html."),
    ] = None,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Compare predictions with runs that others measured."""
    import json

    _check_writable(output)
    from meshwright.evidence.plot import plot_library, plot_paths, save_plot

    if plot:
        plot_library()
        for path in plot_paths(plot):
            _check_writable(path, "--plot")
    from meshwright.evidence.read import read_runs
    from meshwright.evidence.score import judge
    from meshwright.evidence.tables import evidence_data, evidence_sections
    from meshwright.profile import load_profile
    from meshwright.progress import Progress
    from meshwright.report.render import sections_as_markdown, sections_as_text

    with Progress() as progress:
        progress.say("pricing runs")
        fitted = load_profile(profile)
        board = judge(read_runs(runs), weak or (), fitted)
        if plot:
            progress.say("drawing")
            save_plot(board.priced, plot)
    if output_format is Format.json:
        text = json.dumps(evidence_data(board), indent=2) + "\n"
    elif output_format is Format.markdown:
        text = sections_as_markdown(evidence_sections(board))
    else:
        text = sections_as_text(evidence_sections(board))
    _write(text, output)


@app.command()
def calibrate(
    runs: Annotated[Path, typer.Argument(help="Measured runs, YAML or CSV.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The profile to write, YAML.")
    ],
    profile: ProfileOption = MEASURED,
) -> None:
    """Fit efficiencies to measured runs, from those of a profile on."""
    _check_writable(output)
    import yaml

    from meshwright.evidence.calibrate import calibrate as fit_profile
    from meshwright.evidence.price import price_runs
    from meshwright.evidence.read import read_runs
    from meshwright.evidence.tables import profile_sections
    from meshwright.profile import load_profile
    from meshwright.progress import Progress
    from meshwright.report.render import sections_as_text

    with Progress() as progress:
        priced, unpriced = price_runs(read_runs(runs))
        fitted = fit_profile(priced, load_profile(profile), progress.say)
    if not fitted.measured:
        raise SpecError(f"{runs}: no run with a time can be priced")
    data = fitted.model_dump(mode="json")
    _write(yaml.safe_dump(data, sort_keys=False), output)
    sys.stdout.write(sections_as_text(profile_sections(fitted, len(unpriced))))


@app.command("import")
def import_files(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND FILE...", help="nvidia_smi topo.txt, for one."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Of the machine: a bundled name or a file.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="What slurm and ibnetdiscover join, likewise.")
    ] = None,
    onto: Annotated[
        str | None, typer.Option(help="Topology that nccl_tests measured, likewise.")
    ] = None,
    op: Annotated[str | None, typer.Option(help="Test, if a log is silent.")] = None,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="GPUs, if a log is silent.")
    ] = None,
    output: OutputOption = None,
) -> None:
    """Make a topology of what other tools print about a cluster."""
    _check_writable(output)
    from meshwright.imports.command import Options, run
    from meshwright.report.render import sections_as_text

    made = run(words or [], Options(gpu, machine, onto, op, ranks))
    _tell(made.notes)
    _write(made.text, output)
    if made.sections:
        stream = sys.stdout if output else sys.stderr
        stream.write(sections_as_text(made.sections))


def _tell(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _check_writable(output: Path | None, option: str = "--output") -> None:
    """Refuse an output that cannot be written before there is one to lose."""
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        reason = "is a directory" if output.is_dir() else "no such file or directory"
        raise SpecError(f"{option} {output}: {reason}")


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise SpecError(f"--output {output}: {reason}") from None


def main() -> None:
    """Run the command line; errors become one message and an exit code."""
    try:
        app()
    except InternalError as error:
        print(f"internal error, please report it: {error}", file=sys.stderr)
        sys.exit(EXIT_CODES["unknown"])
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
