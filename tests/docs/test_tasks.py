"""The tasks of a new user: their commands exist, and their answers are right."""

from __future__ import annotations

import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from benchmarks.agent import session
from benchmarks.on_page import page_opener
from benchmarks.tasks import (
    ROOT,
    Task,
    by_agent,
    from_python,
    on_page,
    put_files,
    tasks,
    typed,
    wrong_of,
)

from tests.helpers.command import run
from tests.helpers.extent import gate

EVERY = {one.task: one for one in tasks()}


def test_there_are_41_and_each_is_checked() -> None:
    assert len(EVERY) == len(tasks()) == 41
    for task in EVERY.values():
        assert task.says or task.json or task.writes
        assert all((ROOT / file).is_file() for file in task.files.values())


@pytest.mark.parametrize("task", EVERY.values(), ids=list(EVERY))
def test_help_knows_every_word(task: Task) -> None:
    command = task.types.partition("meshwright ")[2]
    told = run(command.split()[0], "--help").stdout
    options = re.findall(r"(?<!\S)--?[a-z][a-z-]*", command)
    assert [option for option in options if option not in told] == []


TYPED = gate([*EVERY.values()][::3], everything=[*EVERY.values()])


@pytest.mark.slow
@pytest.mark.parametrize("task", TYPED, ids=lambda given: given.task)
def test_answers_are_right(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, if nothing is piped into the command."""
    if "|" in task.types:
        assert typed(task).wrong == []
        return
    put_files(task, tmp_path)
    monkeypatch.chdir(tmp_path)
    told = run(*shlex.split(task.types)[1:])
    done = CompletedProcess(task.types, told.code, told.stdout, told.stderr)
    assert wrong_of(task, done, tmp_path) == []


OTHERWISE = gate(
    [one for one in EVERY.values() if one.task.startswith(("Why a", "The same for"))],
    everything=[*EVERY.values()],
)


@pytest.mark.slow
@pytest.mark.parametrize("task", OTHERWISE, ids=lambda given: given.task)
def test_python_does_the_same(task: Task) -> None:
    assert not task.python or from_python(task).wrong == []


@pytest.mark.slow
def test_agents_do_the_same() -> None:
    with session() as found:
        for task in OTHERWISE:
            assert not task.agent or by_agent(task, found).wrong == [], task.task


def test_most_tasks_have_every_way() -> None:
    assert sum(bool(one.python) for one in EVERY.values()) >= 39
    assert sum(bool(one.agent and one.hears) for one in EVERY.values()) >= 39
    assert sum(bool(_on_page(one)) for one in EVERY.values()) >= 22
    assert all(one.page for one in EVERY.values()), "or the reason why not"


def _on_page(task: Task) -> bool:
    return not isinstance(task.page, str)


PLAYED = gate([*EVERY.values()][3:20:6], everything=[*EVERY.values()])


@pytest.mark.slow
def test_the_page_of_the_browser_does_the_same() -> None:
    pytest.importorskip("playwright.sync_api", reason="needs Playwright")

    def wrong() -> dict[str, list[str]]:
        with page_opener() as opened:
            return {
                task.task: on_page(task, opened).wrong
                for task in filter(_on_page, PLAYED)
            }

    # A thread has one Playwright, and other tests of a process keep theirs.
    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(wrong).result()
    assert {task: lacks for task, lacks in told.items() if lacks} == {}


def test_the_page_has_every_task() -> None:
    page = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")
    for task in EVERY.values():
        ways = {"Python": task.python, "agent": task.agent, "page": _on_page(task)}
        also = [way for way, steps in ways.items() if steps]
        command = task.types.replace("|", "\\|")
        assert f"| {task.task} | `{command}` | {', '.join(also) or '-'} |" in page
