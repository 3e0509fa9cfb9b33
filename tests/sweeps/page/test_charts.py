"""The charts of the page: points and cells that are clicked, fronts, brushes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from meshwright.sweeps.metrics import METRICS
from tests.sweeps.page.reading import (
    choose_view,
    expect,
    expect_count,
    expect_shown,
    listed,
    of_chart,
)
from tests.sweeps.page.rows import HOSTILE, planned, rows

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.slow
def test_a_point_shows_its_case(page: Page) -> None:
    """The page tells where the point lies, the mouse goes there."""
    choose_pair(page, "peak_gib", "tokens_per_s")
    row = max(planned(), key=lambda i: rows()[i].tokens_per_s or 0)
    page.mouse.click(*place_of(page, row))
    expect_shown(page, row)


def test_names_over_points_are_text(page: Page) -> None:
    choose_pair(page, "peak_gib", "tokens_per_s")
    page.mouse.move(*place_of(page, planned()[-1]))
    expect(page.locator("#chart .hovertext")).to_contain_text(HOSTILE[0])


def choose_pair(page: Page, x: str, y: str) -> None:
    page.locator("#scatter-colour").select_option("none")
    page.locator("#scatter-x").select_option(x)
    page.locator("#scatter-y").select_option(y)
    title = page.locator("#chart .ytitle")
    expect(title).to_contain_text(y)


def place_of(page: Page, row: int) -> tuple[float, float]:
    box = page.evaluate(
        """row => {
          const chart = document.getElementById("chart");
          const { xaxis, yaxis } = chart._fullLayout;
          const trace = chart.data.find((own) => own.customdata?.includes(row));
          const i = trace.customdata.indexOf(row);
          const at = chart.getBoundingClientRect();
          return [at.x + xaxis._offset + xaxis.d2p(trace.x[i]),
                  at.y + yaxis._offset + yaxis.d2p(trace.y[i])];
        }""",
        row,
    )
    return box[0], box[1]


PAIRS = [
    ("peak_gib", "tokens_per_s"),
    ("step_s", "headroom_gib"),
    ("gpus", "mfu"),
    ("mfu", "gpus"),
    ("step_s", "step_s"),
]


@pytest.mark.parametrize(("x", "y"), PAIRS)
def test_front_is_what_no_other_case_beats(x: str, y: str, page: Page) -> None:
    choose_pair(page, x, y)
    page.get_by_label("front only").check()
    points = {
        i: tuple(
            value if METRICS[name].better == "min" else -value
            for name, value in ((x, getattr(rows()[i], x)), (y, getattr(rows()[i], y)))
        )
        for i in planned()
    }
    best = [i for i, point in points.items() if not is_beaten(point, points.values())]
    expect_count(page, len(best))
    assert listed(page) == best


def is_beaten(given: tuple[float, ...], others: Iterable[tuple[float, ...]]) -> bool:
    return any(
        other != given and all(a <= b for a, b in zip(other, given, strict=True))
        for other in others
    )


def test_every_colour_has_a_front(page: Page) -> None:
    """With GPUs alike, the front of a model is its fastest case."""
    page.locator("#scatter-x").select_option("gpus")
    page.locator("#scatter-colour").select_option("model")
    page.get_by_label("front only").check()
    fastest: dict[str, tuple[float, int]] = {}
    for i in planned():
        speed, model = rows()[i].tokens_per_s, str(rows()[i].axes["model"])
        assert speed is not None
        fastest[model] = max(fastest.get(model, (0.0, -1)), (speed, i))
    assert len(fastest) > 2
    best = sorted(i for _, i in fastest.values())
    expect_count(page, len(best))
    assert listed(page) == best


@pytest.mark.parametrize("colour", ["none", "model", "pinned", "pp"])
def test_every_plan_is_a_point(colour: str, page: Page) -> None:
    """Those of a case without a value of the axis that has the colours too."""
    choose_pair(page, "peak_gib", "tokens_per_s")
    page.locator("#scatter-colour").select_option(colour)
    drawn = of_chart(page, "data.slice(0, -1).flatMap((own) => own.customdata ?? [])")
    assert sorted(drawn) == planned()


def test_parallel_coordinates_filter_by_what_is_brushed(page: Page) -> None:
    choose_view(page, "Parallel coordinates")
    marks = page.locator("#chart .axis .tick text").all_text_contents()
    assert HOSTILE[2][:10] + "…" in marks, marks
    names = of_chart(page, "data[0].dimensions.map(own => own.label)")
    assert {"model", "pp", "zero", "tokens_per_s"} <= set(names)
    place = page.evaluate("placing(COLUMNS[2])('gpt2-xl')")
    span = [place - 0.4, place + 0.4]
    page.evaluate(
        "([i, span]) => Plotly.restyle("
        "'chart', { [`dimensions[${i}].constraintrange`]: [span] })",
        [names.index("model"), span],
    )
    expected = [i for i, row in enumerate(rows()) if row.axes["model"] == "gpt2-xl"]
    expect_count(page, len(expected))
    assert listed(page) == expected
    choose_view(page, "Front")
    assert listed(page) == expected
    page.get_by_role("button", name="Reset", exact=True).click()
    expect_count(page, len(rows()))


@pytest.mark.slow
def test_a_span_is_drawn_with_the_mouse(page: Page) -> None:
    choose_view(page, "Parallel coordinates")
    names = of_chart(page, "data[0].dimensions.map(own => own.label)")
    axis = names.index("tokens_per_s")
    box = page.locator("#chart .axis-brush").nth(axis).bounding_box()
    assert box
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + 0.1 * box["height"])
    page.mouse.down()
    page.mouse.move(x, box["y"] + 0.6 * box["height"], steps=8)
    page.mouse.up()
    low, high = of_chart(page, f"data[0].dimensions[{axis}].constraintrange")
    speeds = [row.tokens_per_s or 0 for row in rows()]
    expected = [i for i, speed in enumerate(speeds) if low <= speed <= high]
    assert 0 < len(expected) < len(planned())
    expect_count(page, len(expected))
    assert listed(page) == expected


@pytest.mark.slow
def test_heat_map_has_the_best_of_each_cell(page: Page) -> None:
    choose_view(page, "Heat map")
    page.locator("#heat-x").select_option("cluster")
    page.locator("#heat-y").select_option("model")
    page.locator("#heat-value").select_option("step_s")
    drawn = of_chart(page, "data[1].customdata")
    cells: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(rows()):
        key = (str(row.axes["model"]), str(row.axes["cluster"]))
        cells.setdefault(key, []).append(i)
    expected = {best_of(cell) for cell in cells.values()}
    assert {row for line in drawn for row in line if row is not None} == expected
    empty = sum(1 for cell in cells.values() if rows()[best_of(cell)].step_s is None)
    texts = of_chart(page, "data[0].text.flat()")
    assert texts.count("none") == empty > 0


def best_of(cell: list[int]) -> int:
    """Return the fastest case of a cell; the first where none has a plan."""
    return min(cell, key=lambda i: rows()[i].step_s or float("inf"))


def test_a_cell_shows_its_best_case(page: Page) -> None:
    choose_view(page, "Heat map")
    box = page.locator("#chart .nsewdrag").bounding_box()
    assert box
    page.mouse.click(box["x"] + 5, box["y"] + box["height"] - 5)
    corner = of_chart(page, "data[1].customdata[0][0]")
    expect(page.locator("#details h2")).to_have_text(rows()[corner].name)
