"""`meshwright calibrate` and `diagnose`: measured runs beside the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import FOUND, UNDECIDED
from meshwright.cli.options import UNASKED, Words, asked_again
from meshwright.cli.output import (
    Format,
    answered,
    interruptible,
    section_text,
    tell,
    write,
)
from meshwright.errors import SpecError
from meshwright.escape import printable

if TYPE_CHECKING:
    from meshwright.evidence.runs import Run

FIELDS = "\n\n".join(
    (
        "A file of runs is a YAML list, or a CSV table with dotted columns. Each has:",
        "id, source_id: names of the run and of the cluster.",
        "spec, plan: what ran, as `explain SPEC --plan PLAN` takes it; or model, "
        "hardware and config, field by field.",
        "measured: step_time_s or tokens_per_s_per_gpu, peak_memory_gb with "
        "peak_memory_kind (device, allocated or reserved), fits (false: out of "
        "memory). One of them is enough.",
        "config, for runs without a spec: also the switches of your code that you "
        "know: compile, attention, fused, overlap, cuda_graphs, gradients, "
        "loss_parallel, loss_chunks, expert_dispatch, cp_comm_type. Those left out "
        "or null are found.",
        "--template writes a file with comments, `meshwright schema runs` prints all "
        "fields.",
    )
)
"""The fields of a file of runs, below the options."""


def calibrate(
    runs: list[Path] | None = None,
    output: Path | None = None,
    template: bool = False,
    force: bool = False,
    profile: str = DEFAULT_PROFILE,
) -> None:
    """Find switches and efficiencies of your cluster in a few runs."""
    if template:
        from meshwright.calibration.probe_report import TEMPLATE

        write(TEMPLATE, output)
        return
    if not runs or output is None:
        missing = "--output: missing;" if runs else "calibrate:"
        expected = "expected RUNS, or SPEC and LOG, with --output; or --template"
        raise SpecError(f"{missing} {expected}")
    import yaml

    from meshwright.calibration.calibrate import calibrate as calibrated
    from meshwright.calibration.calibrate import calibration_sections, doubts
    from meshwright.cli.output import Progress
    from meshwright.cost.profile import load_profile

    read = _read(runs)
    named = printable(", ".join(map(str, runs)))
    if not any(run.measured.says_something for run in read):
        told = "no run is measured; expected step_time_s, tokens_per_s_per_gpu, "
        told += "peak_memory_gb or fits in the `measured` of some run"
        raise SpecError(f"{named}: {told}")
    with Progress() as progress:
        found = calibrated(read, load_profile(profile), progress.say)
    if not found.code_bases:
        raise SpecError(f"{named}: no run can be priced")
    doubted = [*doubts(found)]
    if doubted and not force:
        told = f"{doubted[0]} --force writes the profile all the same"
        raise SpecError(f"{named}: {told}")
    data = found.profile.model_dump(mode="json", exclude_none=True)
    write(yaml.safe_dump(data, sort_keys=False), output)
    sections = calibration_sections(found)
    sys.stdout.write(section_text(sections, sys.stdout))


def _read(paths: list[Path]) -> list[Run]:
    """Return the runs of a file, or of a spec and its logs, with notes on these."""
    from meshwright.calibration.calibrate import runs_of_logs
    from meshwright.evidence.runs import read_runs
    from meshwright.imports.logs.training_log import kind_of_log
    from meshwright.reading.yaml_and_csv import is_folder

    if len(paths) > 1:
        runs, notes = runs_of_logs(str(paths[0]), paths[1:])
        tell(notes)
        return runs
    is_table = paths[0].suffix == ".csv" or is_folder(paths[0])
    if not is_table and kind_of_log(paths[0]):
        named = printable(str(paths[0]))
        told = f"is a log; expected the spec of its run before it: SPEC {named}"
        raise SpecError(f"{named}: {told}")
    return read_runs(paths[0])


def diagnose(
    log: str,
    launch: Path | None = None,
    spec: str | None = None,
    plan: str | None = None,
    asked: Words = UNASKED,
    profile: str = DEFAULT_PROFILE,
    verbose: bool = False,
    output_format: Format = "table",
    output: Path | None = None,
) -> None:
    """Say why a run is slow or died, by its log, and what to change."""
    if asked.set:
        raise SpecError("--set: not beside a log; --spec may have any field")
    with interruptible() as interrupt:
        from meshwright.api.diagnose import diagnose as diagnose_log
        from meshwright.cli.output import Progress

        notes: list[str] = []
        said = {**vars(asked), "count": _whole(asked.count)}
        del said["set"]
        with Progress() as progress:
            progress.say("reading the log")
            told = diagnose_log(
                log,
                launch=launch,
                spec=spec,
                plan=plan,
                **said,
                notes=notes,
                profile=profile,
                on_progress=progress.say,
                interrupt=interrupt,
            )
        if verbose:
            tell(notes)
        started = None if launch is None else str(launch)
        more = {"launch": started, "spec": spec, "plan": plan, "profile": profile}
        typed = asked_again(log, asked, **more)
        write(answered(output_format, told, typed, verbose), output)
    if interrupt.is_asked:
        tell(["stopped by Ctrl-C; better plans may be left out"])
    raise typer.Exit(UNDECIDED if interrupt.is_asked else FOUND)


def _whole(count: str | None) -> int | None:
    """Return the machines that ran, None where it is not said.

    Raises:
        SpecError: their number cannot be read, or is left open.
    """
    from meshwright.loading.asked import count_of

    found = count_of(count)
    if isinstance(found, list | dict):
        raise SpecError(f"--count {count}: expected one number: that of what ran")
    return found
