"""Probes as a table, and the commands that launch them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from meshwright.calibration.probe import Probe, Probes
from meshwright.calibration.probe_files import RUNS, SPEC, plan_name
from meshwright.calibration.tables import word
from meshwright.report.safety import probability_text
from meshwright.report.tables import Lines, Section, Table, seconds_text


def probe_sections(found: Probes, folder: Path | None) -> list[Section]:
    """Return the sections of probes, with commands where they are in a folder."""
    rows = tuple(
        (str(number), *_cells(one)) for number, one in enumerate(found.runs, start=1)
    )
    heading = ("run", "plan", "step", "GiB", "fits", "nats", "tells of")
    title = (
        f"The runs that tell most, of {found.candidates} plans; {found.rivals} of the "
        "spec's may be its best"
    )
    parts: list[Section] = [
        Lines(found.spec.title, ()),
        Table(title, heading, rows),
        Lines("Reading", tuple(_reading())),
    ]
    if folder is not None:
        parts.append(Lines("To launch them", tuple(_commands(found, folder))))
    return parts


def _cells(one: Probe) -> tuple[str, ...]:
    switches = ", ".join(
        f"{name} {word(setting)}" for name, setting in one.choice.tells_of
    )
    return (
        one.plan.brief,
        seconds_text(one.step_s),
        f"{one.peak_gib:.1f}",
        probability_text(one.choice.fits),
        f"{one.choice.nats:.2f}",
        switches or "efficiencies",
    )


def _reading() -> Iterator[str]:
    yield "step, GiB: as predicted now. fits: how likely, with all switches in doubt."
    yield "nats: what the run is expected to tell beside those above it."
    yield "tells of: whether the code has this switch so; else of efficiencies alone."


def _commands(found: Probes, folder: Path) -> Iterator[str]:
    for number in range(1, len(found.runs) + 1) if found.is_exported else ():
        plan = folder / plan_name(number)
        files = _quoted(folder / plan.stem)
        yield f"mkdir -p {files}"
        yield (
            f"meshwright export {_quoted(folder / SPEC)} --plan {_quoted(plan)} "
            f"-o {files}"
        )
    runs, profile = folder / RUNS, folder / "profile.yaml"
    yield f"meshwright calibrate {_quoted(runs)} -o {_quoted(profile)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
