"""Pages of answers about serving."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import meshwright as mw
from tests.helpers.accessible import grave_violations
from tests.helpers.browsing import OpenFile, watched
from tests.report.pages import data_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FITS, NONE_FITS = "serve-llama3-70b-8xh100", "serve-llama3-70b-2x4090-pcie"


@cache
def answered(name: str) -> tuple[mw.ServingSpec, mw.ServingOutcome]:
    spec = mw.load(name, mw.ServingSpec)
    return spec, mw.solve(spec)


@pytest.fixture
def open_file(browser: Browser) -> Iterator[OpenFile]:
    with watched(browser) as found:
        yield found


def test_times_and_memory_are_those_of_the_plan() -> None:
    spec, outcome = answered(FITS)
    best = outcome.best
    assert best is not None
    (plan,) = data_of(mw.html_report(spec, outcome))["plans"]
    first, further = plan["times"]
    assert first["wholeS"] == pytest.approx(best.ttft_s, rel=1e-6)
    assert further["wholeS"] == pytest.approx(best.tpot_s, rel=1e-6)
    for time in (first, further):
        parts = sum(seconds for _, seconds in time["parts"])
        assert parts == pytest.approx(time["wholeS"], rel=1e-5)
    (stage,) = plan["memory"]["groups"]
    assert stage["total"] == pytest.approx(best.peak_gib, rel=1e-6)
    assert stage["total"] <= stage["usable"] <= stage["capacity"]


def test_the_reasons_are_told_where_none_fits() -> None:
    spec, outcome = answered(NONE_FITS)
    for answer in (outcome, mw.explain(spec)):
        data = data_of(mw.html_report(spec, answer))
        assert data["plans"] == []
        assert "No plan fits" in data["verdict"][0]


def test_answers_of_another_kind_are_refused() -> None:
    spec, outcome = answered(FITS)
    training = mw.load("gpt-1.3b-2xh100-nvlink", mw.Spec)
    with pytest.raises(mw.SpecError, match="about training"):
        mw.html_report(training, outcome)
    with pytest.raises(mw.SpecError, match="about training"):
        mw.html_report(spec, mw.solve(training, by_kind=False, safety=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", [FITS, NONE_FITS])
@pytest.mark.parametrize("size", [(1280, 900), (390, 800)])
def test_the_page_is_drawn(
    name: str, size: tuple[int, int], tmp_path: Path, open_file: OpenFile
) -> None:
    spec, outcome = answered(name)
    file = tmp_path / "serving.html"
    file.write_text(mw.html_report(spec, outcome), encoding="utf-8")
    opened = open_file(file, size)
    figures = opened.locator("figure")
    assert figures.count() == (3 if outcome.best else 0)
    for figure in figures.all():
        assert figure.locator("svg rect").count() > 2
        figure.locator("summary").click()
        figure.locator("details tbody tr").first.wait_for(state="attached")
    assert opened.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert grave_violations(opened) == []
