"""What a new user types for common tasks, and when the answer is there.

`python -m benchmarks.tasks` types each command of benchmarks/tasks.yaml in a clean
folder, as a process of its own, checks the answer, and prints a table in markdown:
its keystrokes, and seconds from the start of the process to the right answer, the
median of three. All of the commands are in the README or in `--help`. Then each task
is done from Python, by calls of the tools for agents, and on the page in a browser,
where these can; on the page once, beside the number of steps.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks import without_options
from benchmarks.agent import Question, Session, scripted, session
from benchmarks.on_page import Step, page_opener, wrong_on

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
TASKS = ROOT / "benchmarks/tasks.yaml"

RUNS = 3
LONGEST_S = 300.0

TOOLS = {
    "meshwright": '#!/bin/sh\nexec "{python}" -m meshwright "$@"\n',
    "nvidia-smi": "#!/bin/sh\ncat topo.txt\n",
}
"""Commands that tasks type: ours, and one that prints a matrix it was given."""


@dataclass(frozen=True)
class Task:
    """What somebody wants, the command for it, and what a right answer has."""

    task: str
    types: str
    files: dict[str, str] = field(default_factory=dict)
    exits: int = 0
    says: list[str] = field(default_factory=list)
    json: dict[str, Any] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    python: str = ""
    """The same from Python; empty where it has no function for it."""
    agent: list[dict[str, Any]] = field(default_factory=list)
    """The same as calls of tools; none where no tool does it."""
    hears: list[str] = field(default_factory=list)
    """Patterns of the answers of the tools."""
    page: list[Step] | str = ""
    """The same on the page; or why it cannot be done there."""


@dataclass(frozen=True)
class Answer:
    """What a task came to."""

    seconds: float
    wrong: list[str]
    """What a right answer has and this one has not."""


def tasks() -> list[Task]:
    """Return the tasks."""
    return [Task(**one) for one in yaml.safe_load(TASKS.read_text(encoding="utf-8"))]


def typed(task: Task) -> Answer:
    """Return the answer to a task, typed in a folder that has its files alone."""
    with tempfile.TemporaryDirectory() as tools, tempfile.TemporaryDirectory() as here:
        for name, script in TOOLS.items():
            path = Path(tools, name)
            path.write_text(script.format(python=sys.executable), encoding="utf-8")
            path.chmod(0o755)
        put_files(task, Path(here))
        words = {"PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "80"}
        start_s = time.perf_counter()
        done = subprocess.run(
            task.types,
            shell=True,
            cwd=here,
            env={**os.environ, **words},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        seconds = time.perf_counter() - start_s
        return Answer(seconds, wrong_of(task, done, Path(here)))


def put_files(task: Task, folder: Path) -> None:
    """Put the files of a task into a folder."""
    for name, source in task.files.items():
        shutil.copy(ROOT / source, folder / name)


def from_python(task: Task) -> Answer:
    """Return the answer to a task from Python, in a process of its own."""
    with tempfile.TemporaryDirectory() as here:
        put_files(task, Path(here))
        start_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", f"import meshwright as mw\n{task.python}"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        seconds = time.perf_counter() - start_s
    return Answer(seconds, [done.stderr[-500:]] if done.returncode else [])


def by_agent(task: Task, given: Session) -> Answer:
    """Return the answer to a task from tools; `@NAME` is the text of a file of it."""
    calls = [
        {tool: {name: _text(task, value) for name, value in arguments.items()}}
        for call in task.agent
        for tool, arguments in call.items()
    ]
    question = Question("", task.task, calls, task.hears)
    start_s = time.perf_counter()
    wrong = question.wrong(scripted(question, given))
    return Answer(time.perf_counter() - start_s, wrong)


def on_page(task: Task, opened: Callable[[], Page]) -> Answer:
    """Return the answer to a task on the page; the start of the page is not counted."""
    assert not isinstance(task.page, str)
    page = opened()
    start_s = time.perf_counter()
    wrong = wrong_on(page, task.page, lambda text: str(_text(task, text)))
    seconds = time.perf_counter() - start_s
    page.close()
    return Answer(seconds, wrong)


def _text(task: Task, value: Any) -> Any:
    is_file = isinstance(value, str) and value.startswith("@")
    return (ROOT / task.files[value[1:]]).read_text("utf-8") if is_file else value


def wrong_of(
    task: Task, done: subprocess.CompletedProcess[str], here: Path
) -> list[str]:
    """Return what a right answer has, and that of a command in a folder has not."""
    return list(_wrong(task, done, here))


def _wrong(
    task: Task, done: subprocess.CompletedProcess[str], here: Path
) -> Iterator[str]:
    if done.returncode != task.exits:
        yield f"exit code {done.returncode}, not {task.exits}: {done.stderr[-500:]}"
    for text in task.says:
        if text not in done.stdout:
            yield f"does not say {text!r}"
    for path, value in task.json.items():
        found = _at(done.stdout, path)
        if found != value:
            yield f"{path} is {found!r}, not {value!r}"
    for name, text in task.writes.items():
        file = here / name
        if not file.is_file() or text not in file.read_text(encoding="utf-8"):
            yield f"{name} does not have {text!r}"


def _at(text: str, path: str) -> Any:
    """Return the value at a path such as `front.0.status` of JSON text."""
    try:
        value = json.loads(text)
        for step in path.split("."):
            value = value[int(step) if isinstance(value, list) else step]
    except (ValueError, LookupError, TypeError):
        return None
    return value


def main() -> int:
    """Type all tasks, and print a table; return 1 if an answer is not right."""
    print("| task | what is typed | keys | s | Python, s | agent, s | page, s |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    is_right = True
    with session() as found, page_opener() as opened:
        for task in tasks():
            page = [] if isinstance(task.page, str) else [on_page(task, opened)]
            ways = [
                [typed(task) for _ in range(RUNS)],
                [from_python(task) for _ in range(RUNS)] if task.python else [],
                [by_agent(task, found) for _ in range(RUNS)] if task.agent else [],
                page,
            ]
            told = " | ".join(map(_told, ways))
            command = task.types.replace("|", "\\|")
            keys = len(task.types)
            print(f"| {task.task} | `{command}` | {keys} | {told} |", flush=True)
            is_right &= not any(answer.wrong for way in ways for answer in way)
    return 0 if is_right else 1


def _told(answers: list[Answer]) -> str:
    """Return the median seconds of a way, or what was wrong; - for no way."""
    if not answers:
        return "-"
    if wrong := [told for answer in answers for told in answer.wrong]:
        return "wrong: " + "; ".join(wrong)
    return f"{statistics.median(answer.seconds for answer in answers):.1f}"


if __name__ == "__main__":
    without_options(__doc__)
    raise SystemExit(main())
