"""Answers one call of a tool: this runs in a process of the pool.

An answer is a text of one screen, the numbers that can be checked, and longer texts
that the agent may ask for by their addresses.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from meshwright import DEFAULT_PROFILE, catalog
from meshwright.agents.numbers import numbers, of_comparison, of_diagnosis, of_rentals
from meshwright.agents.tools import (
    BUNDLED_KINDS,
    Compare,
    Diagnose,
    Explain,
    Export,
    Import,
    ImportCluster,
    Json,
    Question,
    Rent,
    SearchSpecs,
    Solve,
    Timed,
    read_arguments,
)
from meshwright.api.diagnose import diagnose_run, joined, log_of_run
from meshwright.api.explain import compare, explain
from meshwright.api.files import export, html_report
from meshwright.api.import_files import ImportOptions
from meshwright.api.import_files import run as import_files
from meshwright.api.load import AnySpec, read_question
from meshwright.api.options import fixed_spec, pins_of, question_of, read_profile
from meshwright.api.search import rent_offered, tokens_of
from meshwright.api.solve import solve
from meshwright.deadline import Interrupt
from meshwright.errors import InternalError, SpecError
from meshwright.explanations.decisions import with_pins
from meshwright.exports.files import ExportedFile
from meshwright.imports.read import kind_of_launch, read_launch
from meshwright.imports.registry import CLASSES, detect, detect_log, kinds
from meshwright.imports.text import read_text, unfenced
from meshwright.loading.asked import Asked, ask
from meshwright.loading.plan_text import pins_of_answer
from meshwright.loading.price_list import offered_specs, priced_machines
from meshwright.loading.sources import BundledFiles, Files, FilesBelow
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.plans.plan import Plan
from meshwright.report.compare import compare_sections
from meshwright.report.pages.answer import Drawn, ServingAnswer
from meshwright.report.screen import COLUMNS, Answer, full_sections
from meshwright.report.tables import Section, sections_as_text
from meshwright.results.comparison import Comparison
from meshwright.results.explanation import Explanation
from meshwright.results.outcome import Outcome
from meshwright.results.serving import ServingExplanation, ServingOutcome
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec, framework_names
from meshwright.surface import sent

Send = Callable[[Json], None]

NO_FILES = BundledFiles(
    "this server reads no files; give what the file says as text, or start it with "
    "--root FOLDER"
)
"""The files that names may mean while the server has no root: the bundled ones."""

GIVEN = "given.txt"
"""The name of a text that is imported, in messages."""

MOST_ROWS = 20
"""Most names that a look-up lists."""


@dataclass
class Told:
    """An answer to a call."""

    text: str
    """One screen."""
    data: Json
    """The numbers that can be checked."""
    files: dict[str, str] = field(default_factory=dict)
    """Longer texts by the last part of their address."""
    has_page: bool = False
    """Whether there is a page with charts."""


def answer(task: Mapping[str, Any], send: Send, interrupt: Interrupt) -> None:
    """Send the answer to a task: a tool with its arguments, or the page of one.

    Raises:
        SpecError: the arguments cannot be used.
    """
    root = task["root"]
    call = _Call(
        FilesBelow(Path(root)) if root else NO_FILES,
        interrupt,
        lambda text: send({"kind": "progress", "text": text}),
    )
    arguments = read_arguments(task["tool"], task["arguments"])
    with sent():
        if task["wanted"] == "page":
            send({"kind": "answer", "page": call.page(arguments)})
            return
        told = call.answer(arguments)
    data = {name: value for name, value in told.data.items() if value not in (None, ())}
    if call.notes:
        data["notes"] = call.notes
    message = {"text": told.text, "data": data, "files": told.files}
    send({"kind": "answer", **message, "has_page": told.has_page})


class _Call:
    """One call: the files that it may read, and the notes that it gathers."""

    def __init__(self, files: Files, interrupt: Interrupt, say: Callable[[str], None]):
        """Begin without notes."""
        self._files = files
        self._interrupt = interrupt
        self._say = say
        self.notes: list[str] = []

    def answer(self, arguments: Timed) -> Told:
        """Return the answer to a call.

        Raises:
            SpecError: see `answer`.
        """
        match arguments:
            case Solve():
                return self._result(*self._solved(arguments))
            case Explain():
                return self._result(*self._explained(arguments))
            case Compare():
                _, found = self._compared(arguments)
                text = _as_text(compare_sections(_short(found)))
                whole = _as_text(compare_sections(found))
                files = {"answer.json": found.to_json(), "all.txt": whole}
                return Told(text, of_comparison(found), files, has_page=True)
            case Diagnose():
                return self._diagnosed(arguments)
            case Rent():
                return self._rented(arguments)
            case Export():
                return self._exported(arguments)
            case Import():
                return self._imported(arguments)
            case SearchSpecs():
                return _found(arguments)
        raise InternalError(f"no tool has {type(arguments).__name__}")

    def page(self, arguments: Timed) -> str:
        """Return the page of the answer to a call, which is worked out once more.

        Raises:
            SpecError: the answer has no page.
        """
        match arguments:
            case Solve():
                return _page(*self._solved(arguments))
            case Explain():
                return _page(*self._explained(arguments))
            case Compare():
                return _page(*self._compared(arguments))
        raise SpecError("page: this answer has none")

    def _solved(self, asked: Solve) -> tuple[AnySpec, Outcome | ServingOutcome]:
        spec = asked.load(self._files, self.notes)
        return spec, solve(
            spec,
            top=asked.top,
            fastest=asked.fastest,
            near=asked.near,
            framework_limits=asked.framework_limits,
            time_limit_s=asked.time_limit_s,
            on_progress=self._say,
            interrupt=self._interrupt,
        )

    def _explained(
        self, asked: Explain
    ) -> tuple[AnySpec, Explanation | ServingExplanation]:
        spec = self._spec(asked, asked.plan)
        pins = None if asked.plan is None else self._pins(asked.plan, spec)
        return spec, explain(
            spec,
            pins,
            collectives=asked.collectives,
            on_progress=self._say,
            interrupt=self._interrupt,
        )

    def _compared(self, asked: Compare) -> tuple[Spec, Comparison]:
        spec = self._training(asked, *asked.plans)
        named = [
            (_named(plan, number), self._pins(plan, spec))
            for number, plan in enumerate(asked.plans, 1)
        ]
        return spec, compare(spec, named, vary=asked.vary, on_progress=self._say)

    def _spec(self, asked: Question, *plans: str | Json | None) -> AnySpec:
        """Return the spec that is asked about, else what a launch among plans says.

        Raises:
            SpecError: names the argument or the field, its value and what is accepted.
        """
        launch = next(filter(is_launch, plans), None)
        if asked.spec is not None or launch is None:
            return asked.load(self._files, self.notes)
        with self._given(str(launch), None) as path:
            if asked.model is not None and kind_of_launch(path) is None:
                return asked.load(self._files, self.notes)  # Fields of a plan in YAML.
            read = read_launch(path)
        question, started = question_of(read, asked.asked, self.notes, self._files)
        return read_question(
            ask(None, question, self.notes, self._files, started),
            Asked(),
            pins=asked.pins,
            rules=asked.rules,
            notes=self.notes,
            files=self._files,
        )

    def _training(self, asked: Question, *plans: str | Json | None) -> Spec:
        """Return the spec, which must be of training and leave nothing open.

        Raises:
            SpecError: it is another kind of spec; or see `_spec`.
        """
        spec = self._spec(asked, *plans)
        if not isinstance(spec, Spec):
            kind = "inference" if isinstance(spec, ServingSpec) else "open numbers"
            raise SpecError(f"spec: has {kind}; expected training on one cluster")
        return spec

    def _pins(self, plan: str | Json, spec: AnySpec) -> Pins:
        """Return the fields of a plan: text, fields, an answer in JSON, or a launch.

        Raises:
            SpecError: names the field, its value and what is accepted.
        """
        if isinstance(spec, OpenSpec):
            raise SpecError("plan: not beside open numbers; solve chooses both")
        if is_launch(plan):
            with self._given(str(plan), None) as path:
                return pins_of(str(path), spec, self.notes)
        if _is_json(plan):
            plan = pins_of_json(plan)
        return pins_of(plan, spec, self.notes, self._files)

    def _result(self, spec: AnySpec, answer: Answer) -> Told:
        """Return the answer of a solve or an explanation."""
        files = {
            "answer.json": answer.to_json(),
            "all.txt": _as_text(full_sections(answer)),
        }
        is_drawn = not isinstance(spec, OpenSpec) or getattr(answer, "best", None)
        return Told(str(answer), numbers(answer), files, bool(is_drawn))

    def _diagnosed(self, asked: Diagnose) -> Told:
        """Return what slows a run down or stopped it.

        Raises:
            SpecError: the log, the launch or the question cannot be used.
        """
        if asked.pins or asked.rules:
            raise SpecError("pins, rules: not for a run; say with plan what ran")
        with self._given(asked.text, asked.file) as path:
            log = log_of_run(path)
        started = log.launch
        if asked.launch is not None:
            with self._given(asked.launch, None) as path:
                started = joined(log.launch, read_launch(path))
        options = Options(
            profile=read_profile(DEFAULT_PROFILE),
            on_progress=self._say,
            interrupt=self._interrupt,
        )
        told = diagnose_run(
            log,
            started,
            asked.asked,
            options,
            self.notes,
            spec=asked.spec,
            plan=asked.plan,
            files=self._files,
        )
        files = {
            "answer.json": told.to_json(),
            "all.txt": _as_text(full_sections(told)),
        }
        return Told(str(told), of_diagnosis(told), files)

    def _rented(self, asked: Rent) -> Told:
        """Return the machines to rent.

        Raises:
            SpecError: names the argument, or the field of the list of prices.
        """
        with ExitStack() as stack:
            path = None
            if asked.prices is not None:
                path = stack.enter_context(self._given(asked.prices, None))
            offered = offered_specs(
                None,
                asked.asked,
                priced_machines(path, self._files),
                tokens_of(asked.tokens),
                self.notes,
                self._files,
            )
        found = rent_offered(
            offered,
            budget_usd=asked.budget_usd,
            deadline_days=asked.deadline_days,
            workers=1,
            time_limit_s=asked.time_limit_s,
            on_progress=self._say,
            interrupt=self._interrupt,
        )
        return Told(str(found), of_rentals(found), {"answer.json": found.to_json()})

    def _exported(self, asked: Export) -> Told:
        spec = self._training(asked, asked.plan)
        if asked.folder is not None and not isinstance(self._files, FilesBelow):
            raise SpecError(f"folder: {asked.folder!r}: {NO_FILES.no_file}")
        plan = self._plan(asked, spec)
        made = export(spec, plan, to=asked.to, launcher=asked.launcher)
        files = {file.name: file.text for file in made.files}
        if asked.folder is not None and isinstance(self._files, FilesBelow):
            write_below(self._files.root, asked.folder, made.files)
        data = {"plan": str(plan), "target": made.target, "files": [*files]}
        if asked.folder is not None:
            data["folder"] = asked.folder
        first = made.files[0]
        return Told(f"{first.name}:\n{first.text}", data, files)

    def _plan(self, asked: Export, spec: Spec) -> Plan:
        """Return the plan that is asked for, or the recommended one.

        Raises:
            SpecError: no plan fits.
        """
        if asked.plan is not None:
            pinned = with_pins(spec, self._pins(asked.plan, spec))
            known = read_profile(DEFAULT_PROFILE)
            return asked_plan(pinned, Options(profile=known, is_brief=True))
        outcome = solve(
            spec,
            by_kind=False,
            safety=False,
            repair=False,
            time_limit_s=asked.time_limit_s,
            interrupt=self._interrupt,
        )
        if outcome.best is None:
            told = f"nothing is written: the answer is {outcome.status}"
            raise SpecError(f"{told}; explain says why")
        return outcome.best.plan

    def _imported(self, asked: Import) -> Told:
        """Return what a text of another tool says, as YAML.

        Raises:
            SpecError: the text or a file cannot be read, or lacks something.
        """
        is_cluster = isinstance(asked, ImportCluster)
        provided = ("machines", "fabrics", "facts", "logs")
        others = ("launches", "models", "training_logs")
        accepted = kinds(*provided if is_cluster else others)
        if asked.kind is not None and asked.kind not in accepted:
            raise SpecError(f"kind: {asked.kind!r}: accepted: {', '.join(accepted)}")
        beside = ("gpu", "machine", "onto", "op", "ranks")
        options = ImportOptions(
            **{name: getattr(asked, name) for name in beside if is_cluster}
        )
        with self._given(asked.text, asked.file) as path:
            text = read_text(path)
            log = None if is_cluster else detect_log(text)
            kind = asked.kind or log or detect(text, *CLASSES)
            if kind not in accepted:
                other = "import_launch" if is_cluster else "import_cluster"
                seen = f"looks like {kind}, for {other}" if kind else "of no known kind"
                raise SpecError(f"{path}: {seen}; accepted: {', '.join(accepted)}")
            made = import_files([str(kind), str(path)], options, self._files)
        self.notes += made.notes
        tables = _as_text(made.sections) if made.sections else ""
        made_of = yaml.safe_load(made.text)
        data = {"kind": kind, "fields": [*made_of] if made_of else []}
        return Told(made.text + tables, data, {"made.yaml": made.text})

    @contextmanager
    def _given(self, text: str | None, file: str | None) -> Iterator[Path]:
        """Yield a file that is to be read; a text is put into a folder of its own.

        Raises:
            SpecError: there is neither a text nor a file, or both.
        """
        if (text is None) == (file is None):
            raise SpecError("text: expected either text or file")
        if file is not None:
            path = self._files.file(file, Path())
            if path is None:
                raise SpecError(f"file: {file!r}: {self._files.no_file}")
            yield path
            return
        before = os.getcwd()
        with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
            try:
                os.chdir(folder)  # Messages then name the file without its folder.
                Path(GIVEN).write_text(unfenced(str(text)), encoding="utf-8")
                yield Path(GIVEN)
            finally:
                os.chdir(before)


def _page(spec: AnySpec, answer: Drawn | ServingAnswer) -> str:
    """Return the page of an answer; of an open spec, for the choice that was made."""
    return html_report(fixed_spec(spec, answer), answer)


def _short(found: Comparison) -> Comparison:
    """Return a comparison without what every GPU holds and sends, which is long."""
    left_out = {"holdings": (), "collectives": None}
    plans = tuple(plan.model_copy(update=left_out) for plan in found.plans)
    return found.model_copy(update={"plans": plans})


def _is_json(plan: str | Json | None) -> TypeGuard[str]:
    return isinstance(plan, str) and plan.lstrip().startswith("{")


def is_launch(plan: str | Json | None) -> bool:
    """Return whether a plan is the text of a file, of a script as a rule."""
    if not isinstance(plan, str) or _is_json(plan):
        return False
    return "\n" in plan.strip() or " --" in plan


def _named(plan: str | Json, number: int) -> str:
    """Return the name of a plan in a comparison: its text, of a file its number."""
    if is_launch(plan):
        return f"plan {number}"
    if _is_json(plan):
        plan = pins_of_json(plan)
    if isinstance(plan, str):
        return plan
    plain = {n: v for n, v in plan.items() if isinstance(v, int | str)}
    return ",".join(f"{name}={value}" for name, value in plain.items())


def pins_of_json(text: str) -> Json:
    """Return the fields of a plan in JSON: those of an answer, or the fields alone.

    Raises:
        SpecError: it is no JSON, or has no plan.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise SpecError("plan: expected 'tp=8,pp=2', fields, or an answer") from None
    best = data.get("best")
    plan = data.get("plan", best)
    if isinstance(plan, dict) and isinstance(plan.get("plan"), dict):
        plan = plan["plan"]  # An explanation has the priced plan there.
    return pins_of_answer(plan) if isinstance(plan, dict) else dict(data)


def _as_text(sections: list[Section]) -> str:
    return sections_as_text(sections, COLUMNS)


def write_below(root: Path, folder: str, files: tuple[ExportedFile, ...]) -> None:
    """Write files into a folder below the root, through no link and over no file.

    Raises:
        SpecError: names the folder or the file, and why it cannot be written.
    """
    parts = Path(folder).parts
    if not parts or Path(folder).is_absolute() or {"..", "~"} & {*parts}:
        raise SpecError(f"folder: {folder!r}: expected a folder below the root")
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=at)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            inner = os.open(part, flags, dir_fd=at)
            os.close(at)
            at = inner
        for file in files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            number = os.open(file.name, flags, 0o644, dir_fd=at)
            with os.fdopen(number, "w", encoding="utf-8") as opened:
                opened.write(file.text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such folder"
        raise SpecError(f"folder: {folder!r}: {reason.lower()}") from None
    finally:
        os.close(at)


def _found(asked: SearchSpecs) -> Told:
    """Return the bundled names that a query means."""
    words = re.findall(r"[a-z0-9.]+", asked.query.lower())
    rows = [
        (kind, name, about)
        for kind in BUNDLED_KINDS
        if asked.kind in (None, kind)
        for name, about in _bundled(kind)
        if all(word in f"{kind} {name} {about}".lower() for word in words)
    ]
    names: dict[str, list[str]] = {}
    for kind, name, _ in rows[:MOST_ROWS]:
        names.setdefault(kind, []).append(name)
    text = "".join(f"{kind}: {name}: {about}\n" for kind, name, about in rows)
    shown = "".join(text.splitlines(keepends=True)[:MOST_ROWS])
    left = len(rows) - MOST_ROWS
    shown += f"... and {left} more; use other words or a kind\n" if left > 0 else ""
    data = {"matches": len(rows), **names}
    return Told(shown or "nothing by these words\n", data, {"all.txt": text})


_KINDS = {
    "specs": ("specs",),
    "models": (catalog.MODELS,),
    "machines": ("topologies", "topologies/machines"),
    "gpus": (catalog.GPUS,),
}


@cache
def _bundled(kind: str) -> list[tuple[str, str]]:
    """Return the bundled names of a kind, each with the comment of its file."""
    if kind == "frameworks":
        return [(name, "") for name in framework_names()]
    found = []
    for folder in _KINDS[kind]:
        found += [(name, catalog.about(folder, name)) for name in catalog.names(folder)]
    return sorted(found)
