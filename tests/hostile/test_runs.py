"""Hostile text in measured runs and in profiles: boards and plots have it as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.cost.profile import Profile
from meshwright.escape import printable
from meshwright.evidence.runs import Run
from tests.evidence.test_runs import row
from tests.helpers.command import run
from tests.hostile.marks import HIDDEN, MARKS, SHOWN, FieldPath, text_fields
from tests.hostile.readers import Parts, expect_seen, markdown_texts

WHOLE = {"shown": " ".join(SHOWN.values()), "hidden": " ".join(HIDDEN.values())}
"""All marks at once: texts of a run may be of any length."""

each_mark = pytest.mark.parametrize("mark", WHOLE.values(), ids=WHOLE)

FREE = ("id",), ("source_id",), ("source",), ("notes",)
"""Texts of a run that do not decide whether it can be priced."""


FILE: FieldPath = ("spec",)
"""The text that names a file."""


def put(data: dict[str, Any], path: FieldPath, value: Any) -> None:
    """Put a value into a run, into a list where the path says so."""
    *parents, last = path
    if last == "*":
        *parents, last = parents
        value = [value]
    for parent in parents:
        data = data.setdefault(parent, {})
    data[last] = value


def marked_runs(mark: str) -> list[dict[str, Any]]:
    """Return runs with a mark in one text each, and one with all that are free."""
    found = []
    for path in sorted(text_fields(Run) - {FILE}):
        result = row(id=f"run-{'.'.join(path)}")
        put(result, path, mark)
        found.append(result)
    whole = row()
    for path in FREE:
        put(whole, path, f"{mark} of all")
    return [*found, whole]


@pytest.fixture
def runs(mark: str, tmp_path: Path) -> Path:
    path = tmp_path / "runs.yaml"
    path.write_text(json.dumps(marked_runs(mark)), encoding="utf-8")
    return path


@each_mark
def test_specs_that_are_no_files_are_refused(mark: str, tmp_path: Path) -> None:
    found = row()
    put(found, FILE, mark)
    path = tmp_path / "runs.yaml"
    path.write_text(json.dumps([found]), encoding="utf-8")
    result = run("evidence", str(path))
    assert (result.code, result.stdout) == (2, "")
    expect_seen(result.stderr)


@pytest.mark.slow
@each_mark
def test_scoreboard_shows_text(runs: Path, mark: str) -> None:
    outputs = {}
    for form in ("table", "markdown", "json"):
        result = run("evidence", str(runs), "--format", form)
        assert result.code == 0, result.stderr
        expect_seen(result.stderr)
        outputs[form] = result.stdout
    expect_seen(outputs["table"])
    assert f"{printable(mark)} of all" in markdown_texts(outputs["markdown"])
    data = json.loads(outputs["json"])
    assert {mark, f"{mark} of all"} <= data["by_source"].keys()


@pytest.mark.slow
@each_mark
def test_fitted_profile_shows_text(runs: Path, mark: str, tmp_path: Path) -> None:
    result = run("calibrate", str(runs), "-o", str(tmp_path / "own.yaml"), "--force")
    assert result.code == 0, result.stderr
    expect_seen(result.stdout + result.stderr)
    expect_seen((tmp_path / "own.yaml").read_text(encoding="utf-8"))


@each_mark
def test_a_wrong_run_is_refused_in_a_line(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.yaml"
    wrong = row(id=mark, model={"n_layers": mark}), row(measured={"fits": mark}), mark
    for one in wrong:
        path.write_text(json.dumps([one]), encoding="utf-8")
        result = run("evidence", str(path))
        assert (result.code, result.stdout) == (2, "")
        expect_seen(result.stderr)
        assert result.stderr.startswith(f"error: {path}:1: ")
        assert result.stderr.count("\n") == 1
    path.write_text(json.dumps([row(id=mark), row(id=mark)]), encoding="utf-8")
    result = run("evidence", str(path))
    assert result.code == 2
    expect_seen(result.stderr)
    assert result.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Draw harmless runs, and runs with all marks."""
    folder = tmp_path_factory.mktemp("plots")
    marked = [
        row(id=f"{mark}{i}", source_id=f"{mark} source")
        for i, mark in enumerate(MARKS.values())
    ]
    for one, mark in zip(marked, SHOWN.values(), strict=False):
        one["model"]["name"] = mark
    for name, rows in {"plain": [row()], "marked": marked}.items():
        (folder / f"{name}.yaml").write_text(json.dumps(rows), encoding="utf-8")
        plot = str(folder / f"{name}.html")
        result = run("evidence", str(folder / f"{name}.yaml"), "--plot", plot)
        assert result.code == 0, result.stderr
    return {name: folder / f"{name}.html" for name in ("plain", "marked")}


@pytest.mark.slow
def test_plot_has_the_elements_of_its_template(plots: dict[str, Path]) -> None:
    plain, marked = (Parts(plot.read_text(encoding="utf-8")) for plot in plots.values())
    assert marked.elements == plain.elements
    texts = json.dumps(marked.data)
    expect_seen(texts)
    points = [one for rows in marked.data["chart"]["datasets"].values() for one in rows]
    shown = {point["id"] for point in points if "id" in point}
    assert shown == {printable(f"{mark}{i}") for i, mark in enumerate(MARKS.values())}


PROFILE_TEXTS = {
    ("measured", "*", "gpu"),
    ("measured", "*", "framework"),
    ("measured", "*", "kernels"),
    ("measured", "*", "left_out", "parts"),
    ("measured", "*", "unidentified", "*"),
    ("left_out", "parts"),
    ("kinds", "*", "parts"),
    ("kinds", "*", "gpus", "*"),
    ("ranking", "*", "framework"),
    ("switches", "*", "*"),
}


@each_mark
def test_texts_of_a_profile_are_shown_or_refused(mark: str, tmp_path: Path) -> None:
    assert text_fields(Profile) == PROFILE_TEXTS
    bundled = Path(__file__).parents[2] / "profiles" / "measured.yaml"
    data = yaml.safe_load(bundled.read_text(encoding="utf-8"))
    for one in data["measured"]:
        one |= {"gpu": mark + one["gpu"], "framework": mark}
        one |= {"kernels": mark, "unidentified": [mark]}
        if one.get("left_out"):
            one["left_out"]["parts"] = mark
    if data.get("left_out"):
        data["left_out"]["parts"] = mark
    for one in data["kinds"]:
        one |= {"parts": mark, "gpus": [mark]}
    for one in data["ranking"]:
        one["framework"] = mark
    path = tmp_path / "own.yaml"
    for fields in (
        data,
        {mark: 1},
        {"efficiency": {mark: mark}},
        {"switches": {mark: {mark: mark}}},
        {"switches": {mark: {"attention": mark}}},
    ):
        path.write_text(json.dumps(fields), encoding="utf-8")
        result = run("solve", "gpt-1.3b-2x3090-nvlink", "--profile", str(path))
        assert result.code in (0, 2)
        expect_seen(result.stdout + result.stderr)
