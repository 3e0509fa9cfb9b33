"""Pages with hostile names, opened in a browser: all is shown, and nothing runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshwright.escape import printable
from meshwright.sweeps.cases import Row
from meshwright.sweeps.export import export
from tests.evidence.test_runs import row
from tests.helpers.browsing import OpenFile, watched
from tests.helpers.command import run
from tests.helpers.extent import gate
from tests.hostile import documents
from tests.hostile.marks import MARKS, SHOWN, substituted
from tests.hostile.readers import Parts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZE = (1400, 1000)

ATTACK = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
)
NAMES = {**SHOWN, "attack": ATTACK, "legitimate": "A&B <lab> — 3·4"}

PAIRS = {
    f"{one} {other}": f"{SHOWN[one]} {SHOWN[other]}"
    for one, other in zip([*SHOWN][::2], [*SHOWN][1::2], strict=True)
}
"""All that can be seen, in names that are as long as names may be."""

DRAWN = gate(
    {**PAIRS, **{n: NAMES[n] for n in NAMES if n not in SHOWN}}, everything=NAMES
)
"""Names of which each has a page of its own."""

each_name = pytest.mark.parametrize("name", DRAWN.values(), ids=DRAWN)


@pytest.fixture
def open_file(browser: Browser) -> Iterator[OpenFile]:
    with watched(browser) as found:
        yield found


def texts(page: Page, of: str = "#chart svg text") -> list[str]:
    page.wait_for_selector("#chart svg text", state="attached")
    return page.locator(of).all_text_contents()


def drawn(data: Any, folder: Path) -> Path:
    """Return the page of a cluster."""
    file = folder / "cluster.yaml"
    file.write_text(json.dumps(data), encoding="utf-8")
    result = run("topology", str(file), "--plot", str(folder / "drawn"))
    assert result.code == 0, result.stderr
    return folder / "drawn.html"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return what the page of harmless names is made of."""
    file = drawn(documents.GRAPH, tmp_path_factory.mktemp("plain"))
    return Parts(file.read_text(encoding="utf-8")).elements


@pytest.mark.slow
@each_name
def test_topologies_show_names(
    name: str, template: list[Any], tmp_path: Path, open_file: OpenFile
) -> None:
    pytest.importorskip("vl_convert", reason="needs pip install -e '.[plot]'")
    file = drawn(substituted(documents.GRAPH, name[:88]), tmp_path)
    assert Parts(file.read_text(encoding="utf-8")).elements == template
    page = open_file(file, SIZE)
    shown = "".join(texts(page))
    for token in ("Xgraph0X", "Xgpu0X", "Xg0X", "Xcpu1X"):
        assert f"{name[:88]}{token}" in shown
    assert page.title().startswith(f"{name[:88]}Xgraph0X: ".strip())
    assert page.locator("script").count() == 4, "no script but those of the template"
    assert page.locator("#chart img").count() == 0


@pytest.mark.slow
def test_charts_fit_phones_and_tell_marks(tmp_path: Path, open_file: OpenFile) -> None:
    """The picture for phones is another one, with letters as large."""
    file = drawn(documents.TREE, tmp_path)
    tips = "#chart svg [aria-roledescription='rule mark'] title"
    for size in (SIZE, (390, 800)):
        page = open_file(file, size)
        assert any("link: " in tip and "GB/s: 20" in tip for tip in texts(page, tips))
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        width = page.locator("#chart svg").get_attribute("width")
        assert width is not None
        assert float(width) <= size[0], "the picture is not made smaller"


@pytest.mark.slow
def test_evidence_shows_names(tmp_path: Path, open_file: OpenFile) -> None:
    marks = [*MARKS.values(), *NAMES.values()]
    runs = [
        row(id=f"{mark}{i}", source_id=f"{i}{mark}", measured={"step_time_s": 1 + i})
        for i, mark in enumerate(marks)
    ]
    (tmp_path / "runs.yaml").write_text(json.dumps(runs), encoding="utf-8")
    plot = str(tmp_path / "plot.png")
    result = run("evidence", str(tmp_path / "runs.yaml"), "--plot", plot)
    assert result.code == 0, result.stderr
    page = open_file(tmp_path / "plot.html", SIZE)
    legend = texts(page, "#chart svg .role-legend-label text")
    # Labels that are too long end in dots.
    starts = [printable(f"{i}{mark}")[:12] for i, mark in enumerate(marks)]
    assert sorted(one[:12] for one in legend) == sorted(starts)
    points = page.locator("#chart svg .mark-symbol.role-mark path")
    assert points.count() == len(runs)
    assert page.locator("#chart").locator("img, script, b, a, h2").count() == 0
    tips = points.locator("title").all_text_contents()
    for i, mark in enumerate(marks):
        assert any(f"id: {printable(f'{mark}{i}')}" in tip for tip in tips)


@pytest.mark.slow
def test_searches_show_names(tmp_path: Path, open_file: OpenFile) -> None:
    pytest.importorskip("plotly", reason="needs Plotly: pip install -e '.[html]'")
    marks = [*MARKS.values(), *NAMES.values()]
    rows = [
        Row.model_validate(
            {
                "key": f"{i}",
                "name": mark,
                "axes": {mark: mark, "own": i},
                "status": "failed",
                "error": mark,
                "sentence": mark,
                "conflict": (mark,),
                "gpus": 1 + i,
                "step_s": 1 + i % 3,
            }
        )
        for i, mark in enumerate(marks)
    ]
    export(rows, tmp_path / "rows.html")
    page = open_file(tmp_path / "rows.html", SIZE)
    page.wait_for_selector("#chart .main-svg")
    names = page.locator("tbody th button").all_text_contents()
    assert names == marks
    scripts = page.locator("script").count()
    for view in ("Heat map", "Parallel coordinates", "Front"):
        page.get_by_label(view, exact=True).check()
        page.wait_for_timeout(200)
        assert page.locator("#chart svg").locator("script, img, a[href]").count() == 0
    for i, mark in enumerate(marks):
        page.locator(f"tbody tr[data-row='{i}'] button").click()
        assert page.locator("#details h2").text_content() == mark
    assert page.locator("script").count() == scripts
    assert page.locator("main img, main b, main a[href]").count() == 0
