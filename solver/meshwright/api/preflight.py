"""Checks files before a job starts: specs, and launch files.

A spec must be readable, and a plan must fit it. A launch must not contradict itself;
beside a spec or a cluster its plan is judged too, as `explain --plan` does it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshwright.api.explain import explain
from meshwright.api.load import AnySpec, read_question
from meshwright.api.options import launched, question_of, read_asked
from meshwright.api.solve import solve
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.explanations.decisions import with_pins
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import decide
from meshwright.imports.read import launch_kind, read_launch
from meshwright.imports.text import read_text
from meshwright.loading.asked import Asked
from meshwright.loading.load import read_spec
from meshwright.loading.plan_text import as_pins, sizes_of
from meshwright.reading.document import Document
from meshwright.reading.yaml_and_csv import is_file, is_folder
from meshwright.results.explanation import Explanation
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

SUFFIXES = (".json", ".py", ".sh", ".toml", ".yaml", ".yml")
"""Ends of the names of files that are looked at in a folder."""

MOST_BYTES = 1_000_000
"""Bytes of a file; larger ones in a folder are data."""

LIMIT_S = 60.0
"""Seconds to find out whether any plan fits a spec."""

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a file."""

    level: Level
    file: str
    line: int
    """0 where it is about the whole file."""
    text: str
    is_unreadable: bool = False
    """Whether the file is at fault, not the plan in it."""


@dataclass(frozen=True)
class Beside:
    """The question that launches are judged against, as the user named it."""

    spec: str | None = None
    model: str | None = None
    cluster: str | None = None


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and those in folders that may be ours; hidden ones are left out.

    Raises:
        SpecError: a path does not exist.
    """
    for path in paths:
        if is_folder(path):
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(name for name in folders if name[0] not in "._")
                found = (Path(folder, name) for name in sorted(names) if name[0] != ".")
                yield from (path for path in found if _may_be_ours(path))
        elif is_file(path):
            yield path
        else:
            raise SpecError(f"{printable(str(path))}: no such file or folder")


def _may_be_ours(path: Path) -> bool:
    is_read = path.suffix in SUFFIXES and is_file(path)
    return is_read and path.stat().st_size <= MOST_BYTES


def check_file(path: Path, beside: Beside) -> list[Finding] | None:
    """Return the findings on a file; None where it is neither spec nor launch."""
    try:
        text = read_text(path)
    except SpecError:
        return None
    try:
        if _is_spec(path, text):
            return list(_of_spec(path))
        if launch_kind(text) is None:
            return None
        return list(_of_launch(path, beside))
    except SpecError as error:
        return list(_of_error(path, error))


def _is_spec(path: Path, text: str) -> bool:
    """Return whether a file is a spec: YAML with a model, a cluster and a job.

    A file that has these words but is no YAML is one too, so that it is refused.
    """
    if path.suffix not in (".yaml", ".yml"):
        return False
    needed = (r"^model\s*:", r"^cluster\s*:", r"^(training|inference)\s*:")
    return all(re.search(pattern, text, re.MULTILINE) for pattern in needed)


def _of_error(path: Path, error: SpecError) -> Iterator[Finding]:
    """Yield a finding for every line of an error, at the line that it names."""
    name = printable(str(path))
    for line in str(error).splitlines():
        found = re.match(rf"{re.escape(name)}(?::(\d+))?: ", line)
        at = int(found[1] or 0) if found else 0
        yield Finding(
            "error", str(path), at, line[found.end() :] if found else line, True
        )


def _of_spec(path: Path) -> Iterator[Finding]:
    """Yield that no plan fits a spec, if so, and which constraints conflict.

    Raises:
        SpecError: the spec cannot be read.
    """
    spec = read_question(path, Asked())
    is_fit = _fits(spec)
    if is_fit:
        return
    if is_fit is None:
        told = f"whether a plan fits is not known after {LIMIT_S:g} s"
        yield Finding("warning", str(path), 0, told)
        return
    told = "no plan fits"
    place = 0
    if isinstance(spec, Spec):
        explained = explain(spec)
        told = _why("no plan fits", explained)
        place = _line(read_spec(path), explained)
    yield Finding("error", str(path), place, told)


def _fits(spec: AnySpec) -> bool | None:
    """Return whether a plan fits a spec; None where that is not known in time."""
    outcome = solve(
        spec, by_kind=False, safety=False, repair=False, time_limit_s=LIMIT_S
    )
    return None if outcome.status == "unknown" else outcome.status != "infeasible"


def _line(document: Document, told: Explanation) -> int:
    """Return the line of the first pin or limit in a conflict, else of the cluster."""
    rules = told.conflict.rules if told.conflict else ()
    paths = [tuple(rule.rule.split(".")) for rule in rules if "." in rule.rule]
    return document.where(paths[0] if paths else ("cluster",)).line


def _why(verdict: str, told: Explanation) -> str:
    """Return a verdict with its reasons and the first repair."""
    rules = told.conflict.rules if told.conflict else ()
    why = "; ".join(map(str, rules or told.broken_rules))
    mend = f". Mend it: {told.repairs[0].sentence}" if told.repairs else ""
    return f"{verdict}: {why}{mend}"


def _of_launch(path: Path, beside: Beside) -> Iterator[Finding]:
    """Yield the findings on a launch, alone or against the spec it is judged on.

    Raises:
        SpecError: the launch contradicts itself or the spec.
    """
    launch = read_launch(path)
    decided = decide(launch, sizes_of(launch))
    pins = as_pins(launch, decided)
    for told in launch.unknown:
        yield Finding("warning", str(path), 0, f"not known, so not judged: {told}")
    if beside.spec is not None:
        spec = read_question(beside.spec, Asked(), Spec)
        assert isinstance(spec, Spec)
        yield from _judged(path, launch, spec, read_asked(str(path), spec))
    elif beside.cluster is not None:
        on = Asked(model=beside.model, cluster=beside.cluster)
        asked, said = question_of(launch, on, [])
        known = {*said.data.get("training", ()), "global_batch" if asked.batch else ""}
        if missing := [name for name in NEEDED if name not in known]:
            left = " and ".join(f"training.{name}" for name in missing)
            told = f"not judged on the cluster: it does not say {left}; see --spec"
            yield Finding("warning", str(path), 0, told)
            return
        found = read_question(said.data, asked, Spec)
        assert isinstance(found, Spec)
        yield from _judged(path, launch, found, launched(pins, found))


NEEDED = ("seq_len", "global_batch")
"""Fields of training without which no plan can be judged."""


def _judged(path: Path, launch: Launch, spec: Spec, pins: Pins) -> Iterator[Finding]:
    """Yield that the plan of a launch does not fit a spec, if so."""
    if _fits(with_pins(spec, pins)):
        return
    told = explain(spec, pins)
    if told.fits:
        return
    rules = told.conflict.rules if told.conflict else ()
    named = (launch.setting(rule.rule.removeprefix("pins.")) for rule in rules)
    line = next((setting.where.line for setting in named if setting is not None), 0)
    yield Finding("error", str(path), line, _why("does not fit", told))
