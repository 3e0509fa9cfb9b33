"""The example notebook runs, cell by cell, and shows what its last lines are."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from tests.docs.pages import ROOT

NOTEBOOK = json.loads((ROOT / "docs/example.ipynb").read_text("utf-8"))

CODE = ["".join(one["source"]) for one in NOTEBOOK["cells"] if "outputs" in one]


def shown(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does, and return the value of its last line."""
    *lines, last = ast.parse(cell).body
    exec(compile(ast.Module(lines, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return None


def test_a_notebook_keeps_no_outputs() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert all(not one.get("outputs") for one in NOTEBOOK["cells"])
    assert len({one["id"] for one in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


@pytest.mark.slow
def test_every_cell_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    values = [shown(cell, names) for cell in CODE]
    shows = [value for value in values if hasattr(value, "_repr_html_")]
    assert len(shows) >= 3
    for show in shows:
        assert "<iframe" in show._repr_html_()
    printed = capsys.readouterr().out
    assert str(names["outcome"]) in printed
    assert "#!/usr/bin/env bash" in printed
