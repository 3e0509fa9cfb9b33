"""Logs of training runs as measured runs of a spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.evidence.runs import Run
from meshwright.imports.logs.training_log import TrainingLog, read_log
from meshwright.imports.text import read_text
from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import pins_of_launch
from meshwright.spec.spec import Spec

DMON = "nvidia_smi_dmon"


def read_logs(paths: Sequence[Path]) -> list[TrainingLog]:
    """Return what logs tell; output of `nvidia-smi dmon` adds to the log before it.

    Raises:
        SpecError: a file is no log that is known; names file and line.
    """
    found: list[TrainingLog] = []
    for path in paths:
        log = read_log(read_text(path), printable(str(path)))
        if log.kind == DMON and found:
            before = found.pop()
            log = replace(
                before,
                peaks=(*before.peaks, *log.peaks),
                notes=(*before.notes, *log.notes),
            )
        found.append(log)
    return found


def runs_of_logs(spec: str, paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return logs as runs of a spec, and notes on what they leave open.

    The plan of a run is what its log tells; the rest is that of the spec, or chosen.

    Raises:
        SpecError: a log contradicts the spec, or tells no time, peak or outcome.
    """
    notes: list[str] = []
    question = load_spec(spec, notes=notes)
    runs = [
        _run(spec, question, log, f"{Path(log.launch.name).stem}-{number}", notes)
        for number, log in enumerate(read_logs(paths), start=1)
    ]
    return runs, notes


def _run(
    spec: str, question: Spec, log: TrainingLog, name: str, notes: list[str]
) -> Run:
    if not log.measured:
        told = "tells no time of a step, no peak of memory and no outcome"
        raise SpecError(f"{log.launch.name}: {told}")
    pins = pins_of_launch(log.launch, question, notes)
    plan: dict[str, Any] = pins.model_dump(mode="json", exclude_none=True)
    notes += [*log.notes, *(f"{log.launch.name}: {told}" for told in log.told())]
    fields: dict[str, Any] = {
        "id": name[-100:],
        "source_id": "logs",
        "spec": spec,
        "measured": log.measured,
    }
    return Run.model_validate({**fields, "plan": plan} if plan else fields)
