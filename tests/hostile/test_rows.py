"""Hostile text in the rows of a search: every kind of file and table has it as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.escape import printable
from meshwright.report import tables
from meshwright.sweeps.cases import Row
from meshwright.sweeps.export import export, flat, page_data, search_sections
from meshwright.sweeps.run_search import SearchProgress
from meshwright.sweeps.summary import SearchResult, summarise
from meshwright.sweeps.sweep import SweepFields
from tests.helpers.command import run
from tests.helpers.searches import SWEEP, changed, solved, written
from tests.hostile.marks import (
    HIDDEN,
    MARKS,
    SHOWN,
    substituted,
    text_fields,
    token_fields,
    tokens,
)
from tests.hostile.readers import Parts, csv_rows, expect_seen, markdown_texts

each_mark = pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)

AXIS = "Xaxis0X"

OUTPUTS = ("--workers", "1", "-o", "rows.csv", "-o", "rows.json")

pytestmark = pytest.mark.usefixtures("kept_processes")


def swept(name: str, folder: Path) -> str:
    """Return the file of a sweep over two names of the model."""
    axis = f"model.name: [{json.dumps(name)}, own]"
    return written(folder, changed("cluster.count: [1, 2]", axis))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return two rows with a plan, one without and one that failed, all of tokens."""
    solved_rows = solved(tmp_path_factory.mktemp("rows"))
    first, second = (
        solved_row.model_dump(mode="json") for solved_row in solved_rows[:2]
    )
    for i, one in enumerate((first, second)):
        one |= {"key": f"Xkey{i}X", "name": f"Xname{i}X", "axes": {AXIS: f"Xvalue{i}X"}}
        one["plan"]["stages"][0]["gpu"] = f"Xgpu{i}X"
        one["certificate"]["objective"] = "Xobjective0X"
        one["certificate"]["left_open"] = "Xopen0X"
        one["certificate"]["tolerance_from"] = "Xsource0X"
        one["certificate"]["levels"] = ["Xlevel0X"]
    base = {"axes": {AXIS: "Xvalue2X"}, "conflict": []}
    miss = {"conflict": ["Xrule0X", "Xrule1X"], "sentence": "Xsentence0X"}
    return [
        first,
        second,
        base | {"key": "Xkey2X", "name": "Xname2X", "status": "infeasible"} | miss,
        base | {"key": "Xkey3X", "name": "Xname3X", "status": "failed",
                "error": "Xerror0X"},
    ]  # fmt: skip


@pytest.fixture
def rows(plain: list[dict[str, Any]], mark: str) -> list[Row]:
    return [Row.model_validate(one) for one in substituted(plain, mark)]


def summary(rows: list[Row], title: str) -> SearchResult:
    group = next(iter(rows[0].axes))
    return summarise(title, rows, "step_s", group, ("step_s", "gpus"))


def test_rows_have_all_texts_of_the_schema(plain: list[dict[str, Any]]) -> None:
    assert text_fields(Row) <= {path for one in plain for path in token_fields(one)}


def texts_of(row: Row, names: list[str]) -> list[str]:
    found = flat(row)
    return ["" if found.get(name) is None else str(found[name]) for name in names]


@each_mark
def test_csv_has_text_exactly_and_no_formula(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    export(rows, path)
    with path.open(encoding="utf-8", newline="") as file:
        names, *cells = csv_rows(file.read())
    assert names == list(dict.fromkeys(name for row in rows for name in flat(row)))
    assert cells == [texts_of(row, names) for row in rows]


@pytest.mark.parametrize("value", [-1, -0.5, 1e-9, True, None])
def test_csv_keeps_numbers(value: object, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    export([Row(key="k", name="n", axes={"a": value}, status="failed")], path)
    cell = path.read_text(encoding="utf-8").splitlines()[1].split(",")[0]
    assert cell == ("" if value is None else str(value))


@each_mark
def test_json_and_parquet_have_text_exactly(rows: list[Row], tmp_path: Path) -> None:
    export(rows, tmp_path / "rows.json")
    data = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [Row.model_validate(one) for one in data] == rows
    parquet = pytest.importorskip("pyarrow.parquet")
    export(rows, tmp_path / "rows.parquet")
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    for row, each in zip(rows, table, strict=True):
        assert {n: v for n, v in each.items() if v is not None} == {
            n: v for n, v in flat(row).items() if v is not None
        }


def test_page_has_the_elements_of_its_template(
    plain: list[dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("plotly", reason="needs Plotly: pip install -e '.[html]'")
    marked = [one for mark in MARKS.values() for one in substituted(plain, mark)]
    every = [Row.model_validate(one) for one in marked]
    pages = []
    for some in ([], every):
        export(some, tmp_path / "rows.html")
        pages.append(Parts((tmp_path / "rows.html").read_text(encoding="utf-8")))
    assert pages[1].elements == pages[0].elements
    assert pages[1].data == _as_json(page_data(every))


def _as_json(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _as_json(each) for name, each in data.items()}
    if isinstance(data, list | tuple):
        return [_as_json(one) for one in data]
    return data.model_dump(mode="json") if hasattr(data, "model_dump") else data


@each_mark
def test_tables_show_text(
    rows: list[Row],
    plain: list[dict[str, Any]],
    mark: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "WIDTH", 100_000)
    harmless = summary([Row.model_validate(one) for one in plain], "Xtitle0X")
    # Errors have passed through an exception, which leaves lines that can be seen.
    rows[-1] = rows[-1].model_copy(update={"error": printable(mark) + "Xerror0X"})
    hostile = summary(rows, mark + "Xtitle0X")
    before = tables.sections_as_text(search_sections(harmless))
    after = tables.sections_as_text(search_sections(hostile))
    expect_seen(after)
    assert len(tokens(before)) > 8
    for token in tokens(before):
        assert after.count(printable(mark) + token) == before.count(token), token
    texts = markdown_texts(tables.sections_as_markdown(search_sections(harmless)))
    marked = markdown_texts(tables.sections_as_markdown(search_sections(hostile)))
    assert marked == substituted(texts, printable(mark))
    assert json.loads(hostile.to_json())["rows"][0]["name"] == (rows[0].name)


def test_an_error_of_several_lines_stays_so() -> None:
    row = Row(key="k", name="n", axes={}, status="failed", error="a:1: b\na:2: c")
    sections = search_sections(summarise("own", [row, row], "step_s"))
    assert tables.sections_as_text(sections).endswith("2 x a:1: b\n      a:2: c\n")
    assert markdown_texts(tables.sections_as_markdown(sections))[-2:] == [
        "2 x a:1: b", "a:2: c",
    ]  # fmt: skip


@each_mark
def test_progress_shows_text(
    rows: list[Row],
    mark: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshwright.sweeps.run_search.EVERY_S", -1.0)
    with SearchProgress(len(rows), "step_s", next(iter(rows[0].axes))) as watch:
        for row in rows:
            watch.take(row, False)
    told = capsys.readouterr().err
    expect_seen(told)
    assert printable(mark) + "Xvalue0X" in told


@pytest.mark.slow
@pytest.mark.parametrize("mark", SHOWN.values(), ids=SHOWN)
def test_values_of_axes_are_text(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("search", swept(mark, tmp_path), "--group", "model.name", *OUTPUTS)
    assert result.code == 0, result.stderr
    expect_seen(result.stdout + result.stderr)
    data = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert {one["axes"]["model.name"] for one in data} == {mark, "own"}
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        cells = csv_rows(file.read())
    column = cells[0].index("axis.model.name")
    assert {row[column] for row in cells[1:]} == {mark, "own"}


@pytest.mark.parametrize("mark", HIDDEN.values(), ids=HIDDEN)
def test_hidden_values_of_axes_are_refused(mark: str, tmp_path: Path) -> None:
    sweep = swept(mark, tmp_path)
    result = run("search", sweep, "--store", str(tmp_path / "own.sqlite"))
    assert (result.code, result.stdout) == (2, "")
    expect_seen(result.stderr)
    line = SWEEP[: SWEEP.index("cluster.count")].count("\n") + 1
    assert result.stderr.startswith(f"error: {sweep}:{line}: model.name: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
@pytest.mark.parametrize("field", ["best", "group", "front", "where"])
def test_fields_of_a_sweep_are_refused_in_a_line(
    field: str, mark: str, tmp_path: Path
) -> None:
    value = [mark, mark] if field == "front" else mark
    sweep = written(tmp_path, f"{SWEEP}{field}: {json.dumps(value)}\n")
    result = run("search", sweep, "--store", str(tmp_path / "own.sqlite"))
    assert (result.code, result.stdout) == (2, "")
    expect_seen(result.stderr)
    lines = result.stderr.removeprefix("error: ").splitlines()
    last = SWEEP.count("\n") + 1
    assert all(line.startswith(f"{sweep}:{last}: {field}") for line in lines), lines


def test_sweeps_have_no_other_texts() -> None:
    assert text_fields(SweepFields) == {("best",), ("group",), ("front", "*")}
