"""`meshwright solve`: the fastest plan that fits."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.exit_codes import OF_STATUS, UNDECIDED
from meshwright.cli.interrupts import interruptible
from meshwright.cli.options import (
    LARGEST_SEED,
    Format,
    FormatOption,
    OutputOption,
    ProfileOption,
    check_writable,
    formatted,
    tell,
    write,
)
from meshwright.deadline import Deadline
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.reading.files import is_folder

if TYPE_CHECKING:
    from meshwright.results.outcome import Outcome, Status
    from meshwright.solver.options import Options
    from meshwright.spec.serving import ServingSpec
    from meshwright.spec.spec import Spec

MOST_GPUS_BY_KIND = 8
"""Clusters up to this size show the best plan of every kind unasked."""


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
    profile: ProfileOption = DEFAULT_PROFILE,
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of CP-SAT.")
    ] = 0,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Threads of CP-SAT; same answer for any.")
    ] = 1,
    ranks: Annotated[
        Path | None,
        typer.Option(
            help="Write here where each rank runs: ranks.csv, rankfile, hostfile, "
            "visible_devices. A folder."
        ),
    ] = None,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Find the fastest plan that fits, and prove it."""
    check_writable(output)
    if ranks is not None and not is_folder(ranks):
        raise SpecError(f"--ranks {printable(str(ranks))}: no such folder")
    with interruptible() as interrupt:
        loaded = _loaded(spec, pin)
        from meshwright.cli.progress import Progress
        from meshwright.cost.profile import load_profile
        from meshwright.solver.options import Options

        _refuse_beside_inference(loaded, top > 1, ranks, profile != DEFAULT_PROFILE)
        is_small = loaded.cluster.gpus <= MOST_GPUS_BY_KIND
        deadline = Deadline(inf if time_limit is None else time_limit, interrupt)
        with Progress() as progress:
            options = Options(
                time_limit_s=deadline.left_s,
                seed=seed,
                workers=workers,
                top=top,
                is_by_kind=is_small if by_kind is None else by_kind,
                profile=load_profile(profile),
                on_progress=progress.say,
                interrupt=interrupt,
            )
            text, status, outcome = _answer(loaded, options, output_format)
        write(text, output)
        if ranks is not None and outcome is not None:
            _write_ranks(outcome, ranks)
    raise typer.Exit(_exit_code(status, deadline))


def _loaded(name: str, pins: list[str] | None) -> Spec | ServingSpec:
    from meshwright.loading.load import load_question

    notes: list[str] = []
    loaded = load_question(name, pins, notes)
    tell(notes)
    return loaded


def _answer(
    spec: Spec | ServingSpec, options: Options, output_format: Format
) -> tuple[str, Status, Outcome | None]:
    """Return what to print, the status, and the outcome of a training job."""
    from meshwright.spec.serving import ServingSpec

    if isinstance(spec, ServingSpec):
        return *_served(spec, options, output_format), None
    from meshwright.solver.pipeline import solve as solve_spec

    outcome = solve_spec(spec, options)
    return _rendered(spec, outcome, output_format), outcome.status, outcome


def _exit_code(status: Status, deadline: Deadline) -> int:
    """Return the exit code; a plan so far is no answer to what is the fastest one."""
    if deadline.interrupt.is_asked:
        tell(["stopped by Ctrl-C"])
        return UNDECIDED
    if status == "feasible" and deadline.has_passed:
        return UNDECIDED
    return OF_STATUS[status]


def _rendered(spec: Spec, outcome: Outcome, output_format: Format) -> str:
    from meshwright.report import render

    return {
        Format.table: render.as_text,
        Format.markdown: render.as_markdown,
        Format.json: render.as_json,
    }[output_format](spec.title, outcome)


def _refuse_beside_inference(
    spec: Spec | ServingSpec, top: bool, ranks: Path | None, profile: bool
) -> None:
    """Refuse options that are about training where a spec is about inference.

    Raises:
        SpecError: one was given.
    """
    from meshwright.spec.serving import ServingSpec

    given = {"top": top, "ranks": ranks is not None, "profile": profile}
    for name, is_given in given.items():
        if is_given and isinstance(spec, ServingSpec):
            raise SpecError(f"--{name}: for specs with training; this has inference")


def _served(
    spec: ServingSpec, options: Options, output_format: Format
) -> tuple[str, Status]:
    from meshwright.report.serving import serving_data, serving_sections
    from meshwright.serving.solve import solve_serving

    outcome = solve_serving(spec, options)
    text = formatted(
        output_format,
        lambda: serving_sections(spec.title, outcome),
        lambda: serving_data(spec.title, outcome),
    )
    return text, outcome.status


def _write_ranks(outcome: Outcome, folder: Path) -> None:
    from meshwright.plans.ranks import FILES, rank_map

    if outcome.best is None or outcome.cluster is None:
        return
    ranks = rank_map(outcome.cluster, outcome.best.plan)
    for name, content in FILES.items():
        write(content(ranks), folder / name, "--ranks")
