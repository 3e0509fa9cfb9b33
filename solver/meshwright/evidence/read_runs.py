"""Reads evidence files: YAML lists and CSV tables of runs, with the line in errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.evidence.run import Run
from meshwright.reading.csv_columns import read_table
from meshwright.reading.document import Document, Where
from meshwright.reading.files import is_file, is_folder
from meshwright.reading.guard import Limits
from meshwright.reading.messages import explain, shown
from meshwright.reading.yaml_text import read_yaml

RUNS = Limits(most_bytes=10_000_000, most_values=300_000)
"""Limits of files of runs: twice the largest known collection, of 1,300 runs."""


def read_runs(path: Path) -> list[Run]:
    """Return the runs of a file, or of all YAML files in a folder.

    Raises:
        SpecError: a file cannot be read, or a row is not a run; names file, line,
            field, value and what is accepted.
    """
    files = sorted(path.glob("*.yaml")) if is_folder(path) else [path]
    if not files:
        raise SpecError(f"{Where(str(path))}: no YAML files in this folder")
    runs: list[Run] = []
    seen: dict[str, Where] = {}
    for run, where in (found for file in files for found in _runs_of(file)):
        first = seen.setdefault(run.id, where)
        if first is not where:
            raise SpecError(f"{where}: id: {shown(run.id)}: already given at {first}")
        runs.append(run)
    return runs


def _runs_of(path: Path) -> Iterator[tuple[Run, Where]]:
    """Yield the runs of a file, each with the place where it starts."""
    is_table = path.suffix == ".csv"
    document = read_table(path, RUNS) if is_table else read_yaml(path, RUNS)
    if not isinstance(document.data, list) or not document.data:
        raise SpecError(f"{document.where(())}: expected a list of runs")
    for index, row in enumerate(document.data):
        try:
            yield _beside(path, Run.model_validate(row)), document.where((index,))
        except ValidationError as error:
            raise SpecError(explain(_row(document, index), error, Run)) from None


def _beside(path: Path, run: Run) -> Run:
    """Return a run whose spec and plan are files beside that of the run, if there."""
    named = {"spec": run.spec, "plan": run.plan}
    found = {
        name: str(path.parent / text)
        for name, text in named.items()
        if isinstance(text, str) and is_file(path.parent / text)
    }
    return run.model_copy(update=found)


def _row(document: Document, index: int) -> Document:
    """Return one run of a list as a document."""
    places = {p[1:]: where for p, where in document.places.items() if p[:1] == (index,)}
    return Document(document.data[index], places)
