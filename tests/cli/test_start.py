"""What is loaded: libraries cost a small solve more time than its answer does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright
from meshwright import cli
from tests.helpers.command import run

LOADED = """
import sys
from meshwright.cli import main

try:
    main()
except SystemExit as exit_:
    print("code", exit_.code or 0, file=sys.stderr)
print("loaded", *sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["mcp", "ui"])
def test_an_extra_that_is_not_installed_is_named(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anyio", None)
    for module in ("meshwright.agents.server", "meshwright.ui.app"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    done = run(command)
    assert done.code == 2
    needs = f"needs the extra [{command}]; pip install 'meshwright[{command}]'"
    assert done.stderr.startswith(f"error: {command}: {needs}")


LATE = {"altair", "joblib", "networkx", "pandas", "plotly", "pyarrow", "scipy"}
"""Libraries that a solve on levels has no use for."""

HEAVY = {*LATE, "numpy", "ortools"}

OF_OTHER_ANSWERS = {
    "meshwright.explanations.explain",
    "meshwright.loading.plan_text",
    "meshwright.results.diagnosis",
    "meshwright.results.explanation",
    "meshwright.serving.solve",
}
"""Modules that a solve with a plan has no use for."""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Return what a fresh process said to code with some arguments."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(meshwright.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """Return how a command left, and which modules it loaded."""
    lines = python(LOADED, *arguments).stderr.splitlines()
    return int(lines[-2].removeprefix("code ")), set(lines[-1].split()[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code"), [("llama3-8b-2xh100-nvlink", 0), ("llama3-8b-2x4090-pcie", 1)]
)
def test_a_solve_on_levels_loads_what_it_needs(name: str, code: int) -> None:
    left, modules = loaded("solve", name)
    assert left == code
    assert "numpy" in modules
    assert not modules & LATE
    assert code or not modules & OF_OTHER_ANSWERS


def test_only_the_command_that_is_asked_for_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(*words: str) -> list[str | None]:
        monkeypatch.setattr(sys, "argv", ["meshwright", *words])
        return [command.name for command in cli.asked_commands().registered_commands]

    every = [*cli.VERBS, *cli.RARE_VERBS]
    assert [made(verb) for verb in every] == [[verb] for verb in every]
    assert made() == made("--help") == made("solv") == made("-h", "solve") == every
    monkeypatch.setenv(cli.COMPLETION, "complete_bash")
    assert made("solve") == every


@pytest.mark.slow
def test_an_irregular_host_is_a_graph() -> None:
    _, modules = loaded("topology", "dgx-1v")
    assert "networkx" in modules


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_loads_no_schemas(word: str) -> None:
    left, modules = loaded(word)
    assert left == 0
    assert not modules & {*HEAVY, "pydantic"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["solve", "--help"], 0),
        (["search", "--help"], 0),
        (["solved"], 2),
        (["solve"], 2),
        (["solve", "--bogus"], 2),
        (["solve", "x", "--top", "none"], 2),
        (["solve", "no-such-spec"], 2),
        (["explain", "no-such-spec"], 2),
    ],
)
def test_help_and_errors_load_nothing_heavy(words: list[str], code: int) -> None:
    left, modules = loaded(*words)
    assert left == code
    assert not modules & HEAVY
