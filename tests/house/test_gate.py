"""`python -m tests` says what it does, and `--all` reaches every test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests import __main__ as gate
from tests.helpers.extent import ALL

Ran = list[tuple[list[str], Mapping[str, str]]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Return what is run from now on; none of it is."""
    ran: Ran = []

    def run(
        words: list[str], *, env: Mapping[str, str], **_: Any
    ) -> subprocess.CompletedProcess[str]:
        ran.append((words[1:], env))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv(ALL, raising=False)
    return ran


def asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Return the code with which the gate leaves."""
    monkeypatch.setattr(sys, "argv", ["python -m tests", *words])
    with pytest.raises(SystemExit) as left:
        gate.main()
    return left.value.code


def test_help_is_printed_and_nothing_runs(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "--help") == 0
    assert "--all" in capsys.readouterr().out
    assert ran == []


def test_words_go_to_pytest_and_all_to_every_check(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, "-k", "memory", "-m", "not slow")
    (words,) = (one for one, _ in ran if one[:2] == ["-m", "pytest"])
    assert words[-4:] == ["-k", "memory", "-m", "not slow"]
    assert {environment.get(ALL) for _, environment in ran} == {None}
    ran.clear()
    asked(monkeypatch, "--all", "-x")
    (words,) = (one for one, _ in ran if one[:2] == ["-m", "pytest"])
    assert words[-1] == "-x"
    assert {environment.get(ALL) for _, environment in ran} == {"all"}


@pytest.mark.parametrize("failing", ["ruff", "mypy", "sphinx", "pytest"])
def test_whatever_fails_fails_the_gate(
    failing: str, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run

    def fail(words: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        run(words, **how)
        return subprocess.CompletedProcess(words, int(failing in words), "told\n")

    monkeypatch.setattr(subprocess, "run", fail)
    assert asked(monkeypatch) == 1
    assert ("pytest" in [words[1] for words, _ in ran]) == (failing != "ruff")


@pytest.mark.parametrize(("said", "examples"), [("all", "25"), ("", "8")])
def test_a_test_draws_as_many_examples_as_are_asked_for(
    said: str, examples: str
) -> None:
    code = "from tests.planner import test_brute_force as own; print(own.EXAMPLES)"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=gate.ROOT,
        env=os.environ | {ALL: said},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.strip() == examples
