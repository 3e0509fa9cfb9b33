"""`meshwright export`: the recommended plan as files that start a framework."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import OF_STATUS
from meshwright.cli.options import (
    UNASKED,
    PinOption,
    ProfileOption,
    SpecOrNone,
    Words,
    asking,
    load_asked,
    load_training,
)
from meshwright.cli.output import (
    check_folder,
    folded,
    tell,
    write,
)
from meshwright.cli.progress import interruptible
from meshwright.exports import LauncherName, TargetName

if TYPE_CHECKING:
    from meshwright.exports.files import Export
    from meshwright.plans.plan import Plan
    from meshwright.results.serving import ServingPlan


@asking
def export(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Write files here. A folder.")
    ],
    spec: SpecOrNone = None,
    asked: Words = UNASKED,
    to: Annotated[
        TargetName | None,
        typer.Option(help="What starts the plan. Default: by the spec's framework."),
    ] = None,
    launcher: Annotated[
        LauncherName,
        typer.Option(help="What starts every host; sbatch is Slurm."),
    ] = "torchrun",
    pin: PinOption = None,
    plan: Annotated[
        str | None,
        typer.Option(
            help="Write this plan instead, as `explain --plan` takes it, whether or "
            "not it fits."
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop after so many seconds with the best so far."),
    ] = None,
    profile: ProfileOption = DEFAULT_PROFILE,
) -> None:
    """Write the recommended plan as files that start a training framework."""
    check_folder(output, "--output")
    if plan is not None:
        _export_asked(spec, asked, plan, output, (to, launcher), pin, profile)
        return
    with interruptible() as interrupt:
        from meshwright.api.export import export as export_plan
        from meshwright.api.options import fixed_spec, refuse_beside_inference
        from meshwright.api.solve import solve
        from meshwright.cli.progress import Progress

        loaded = load_asked(spec, asked, pin)
        refuse_beside_inference(loaded, {"export": True})
        with Progress() as progress:
            outcome = solve(
                loaded,
                time_limit_s=time_limit,
                by_kind=False,
                repair=False,
                profile=profile,
                on_progress=progress.say,
                interrupt=interrupt,
            )
        if outcome.best is None:
            tell([f"nothing is written: the answer is {outcome.status}"])
            raise typer.Exit(OF_STATUS[outcome.status])
        resolved = fixed_spec(loaded, outcome)
        files = export_plan(resolved, outcome, to=to, launcher=launcher)
        write_files(files, output, "--output")
    _print_written(outcome.best.plan, files)


def _export_asked(
    source: str | None,
    asked: Words,
    plan: str,
    output: Path,
    means: tuple[TargetName | None, LauncherName],
    pins: list[str] | None,
    profile: str,
) -> None:
    """Write a plan that was asked for."""
    from meshwright.api.export import export as export_plan
    from meshwright.api.options import pins_of, read_profile
    from meshwright.explanations.decisions import with_pins
    from meshwright.planner.options import Options
    from meshwright.planner.solve import asked_plan

    notes: list[str] = []
    loaded, _ = load_training(source, asked, notes, pins)
    known = read_profile(profile)
    pinned = with_pins(loaded, pins_of(plan, loaded, notes))
    found = asked_plan(pinned, Options(profile=known, is_brief=True))
    tell(notes)
    files = export_plan(loaded, found, to=means[0], launcher=means[1])
    write_files(files, output, "--output")
    _print_written(found, files)


def _print_written(plan: Plan | ServingPlan, files: Export) -> None:
    for line in folded(f"plan: {plan}", sys.stdout):
        print(line)
    for file in files.files:
        print(f"wrote {file.name}")


def write_files(files: Export, folder: Path, option: str) -> None:
    """Write files into a folder, those that start something last.

    Their names are plain, never paths.
    """
    for file in sorted(files.files, key=lambda file: file.name.endswith(".sh")):
        write(file.text, folder / file.name, option)
