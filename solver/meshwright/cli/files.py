"""`meshwright export`, `import` and `check`: plans as files of other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import BAD_INPUT, FOUND, NONE_FITS, OF_STATUS
from meshwright.cli.options import UNASKED, Words, load_asked, load_training
from meshwright.cli.output import folded, interruptible, section_text, tell, write
from meshwright.escape import printable
from meshwright.exports import LauncherName, TargetName

if TYPE_CHECKING:
    from meshwright.api.preflight import Finding
    from meshwright.exports.files import Export
    from meshwright.plans.plan import Plan
    from meshwright.results.serving import ServingPlan


def export(
    output: Path,
    spec: str | None = None,
    asked: Words = UNASKED,
    to: TargetName | None = None,
    launcher: LauncherName = "torchrun",
    pin: list[str] | None = None,
    plan: str | None = None,
    time_limit: float | None = None,
    profile: str = DEFAULT_PROFILE,
) -> None:
    """Write the recommended plan as files that start a training framework."""
    if plan is not None:
        _export_asked(spec, asked, plan, output, (to, launcher), pin, profile)
        return
    with interruptible() as interrupt:
        from meshwright.api.files import export as export_plan
        from meshwright.api.options import fixed_spec, refuse_beside_inference
        from meshwright.api.solve import solve
        from meshwright.cli.output import Progress

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
    from meshwright.api.files import export as export_plan
    from meshwright.api.options import pins_of, read_profile
    from meshwright.explanations.decisions import with_pins
    from meshwright.planner.options import Options
    from meshwright.planner.solve import asked_plan

    notes: list[str] = []
    loaded, _ = load_training(source, asked, notes, pins, plan)
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


Annotate = Literal["text", "github"]
"""Who reads the findings."""


def check(
    paths: list[Path],
    spec: str | None = None,
    cluster: str | None = None,
    model: str | None = None,
    annotate: Annotate = "text",
) -> None:
    """Check specs and launch files: contradictions, illegal plans, memory."""
    from meshwright.api.preflight import Beside, check_file, files_in
    from meshwright.spec.units import counted

    beside = Beside(spec, model, cluster)
    checked, findings = 0, []
    for path in files_in(paths):
        found = check_file(path, beside)
        if found is None:
            continue
        checked += 1
        for finding in found:
            line = _line(finding, annotate)
            is_text = annotate == "text"
            print(*(folded(line, sys.stdout) if is_text else [line]), sep="\n")
        findings += found
    if not checked:
        tell(["nothing here is a spec (a model, a cluster) or starts training"])
    errors = [finding for finding in findings if finding.level == "error"]
    tell([f"{counted(checked, 'file')} checked, {counted(len(errors), 'error')}"])
    if not errors:
        raise typer.Exit(FOUND)
    is_unreadable = any(error.is_unreadable for error in errors)
    raise typer.Exit(BAD_INPUT if is_unreadable else NONE_FITS)


def _line(finding: Finding, annotate: Annotate) -> str:
    """Return a finding in a line of text, or as a workflow command of GitHub.

    These escape percent signs and line ends; properties colons and commas too
    (github.com/actions/toolkit, packages/core/src/command.ts).
    """
    file, text = printable(finding.file), printable(finding.text)
    if annotate == "text":
        place = f"{file}:{finding.line}" if finding.line else file
        return f"{place}: {finding.level}: {text}"
    text, file = (part.replace("%", "%25") for part in (text, file))
    file = file.replace(":", "%3A").replace(",", "%2C")
    line = f",line={finding.line}" if finding.line else ""
    return f"::{finding.level} file={file}{line},title=Meshwright::{text}"


def import_files(
    words: list[str] | None = None,
    gpu: str | None = None,
    machine: str | None = None,
    onto: str | None = None,
    op: str | None = None,
    ranks: int | None = None,
    verbose: bool = False,
    output: Path | None = None,
) -> None:
    """Make a topology from output of other tools, or a plan from a launch script."""
    from meshwright.api.import_files import ImportOptions, run

    made = run(
        words or [], ImportOptions(gpu, machine, onto, op, ranks, verbose or None)
    )
    is_shown = output is None and sys.stdout.isatty()
    tell(note for note in made.notes if not (is_shown and note in made.text))
    write(made.text, output)
    if made.sections:
        stream = sys.stdout if output else sys.stderr
        stream.write(section_text(made.sections, stream))
