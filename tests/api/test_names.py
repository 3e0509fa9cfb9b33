"""The public names: which there are, what they cost to import, and their examples."""

from __future__ import annotations

import doctest
import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import meshwright as mw

ROOT = Path(mw.__file__).parent

pytestmark = pytest.mark.usefixtures("kept_processes")

HEAVY = {"numpy", "ortools", "pandas", "pydantic", "yaml"}

IMPORTED = """
import sys
import meshwright as mw
dir(mw), mw.__all__, mw.__version__
print(*sys.modules)
"""


def is_documented(name: str) -> bool:
    return inspect.isfunction(getattr(mw, name)) or inspect.isclass(getattr(mw, name))


NAMES = [name for name in mw.__all__ if is_documented(name)]


def homes() -> list[ModuleType]:
    found = {getattr(mw, name).__module__ for name in NAMES}
    return [import_module(name) for name in sorted(found)]


def test_importing_loads_no_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "meshwright" in loaded
    assert not loaded & HEAVY


def test_all_names_are_there_and_listed() -> None:
    assert set(mw.__all__) <= set(dir(mw))
    assert all(getattr(mw, name) is not None for name in mw.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'solv'"):
        _ = mw.solv  # type: ignore[attr-defined]


def test_names_are_no_folders() -> None:
    folders = {path.stem for path in ROOT.iterdir()}
    assert not folders & set(mw.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_names_have_docstrings_with_examples(name: str) -> None:
    assert ">>>" in str(inspect.getdoc(getattr(mw, name)))


@pytest.mark.slow
@pytest.mark.parametrize("module", homes(), ids=lambda module: str(module.__name__))
def test_examples_run(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_type_checkers_are_told() -> None:
    assert (ROOT / "py.typed").is_file()
