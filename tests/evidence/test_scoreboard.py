"""The scatter plot: both files, every run once, nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
import struct
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from meshwright.evidence.scoreboard import SIZE_PX
from tests.evidence.test_runs import row
from tests.helpers.command import run as run_command

IDS = ("run-tp1", "run-tp2", "run-tp4")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs with a time, one without, one that cannot be priced."""
    rows = [
        row(id=name, config__tp=tp, config__dp=8 // tp,
            source_id=f"source-{tp}", measured={"step_time_s": 0.5 * tp})
        for name, tp in zip(IDS, (1, 2, 4), strict=True)
    ]  # fmt: skip
    rows += [
        row(id="untimed", measured={"fits": True}),
        row(id="left", config__precision="fp8"),
    ]
    file = tmp_path / "runs.yaml"
    file.write_text(json.dumps(rows))
    return file


def refused(runs: Path, plot: Path) -> str:
    """Return the one message with which a plot is refused; nothing else is told."""
    result = run_command("evidence", str(runs), "--plot", str(plot))
    assert (result.code, result.stdout) == (2, ""), result
    assert result.stderr.startswith("error: --plot")
    assert result.stderr.count("\n") == 1
    return result.stderr


class Loads(HTMLParser):
    """Collects what a page would load when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        links = {"src", "srcset", "data"} | ({"href"} if tag == "link" else set())
        self.found += [f"{tag} {value}" for name, value in attrs if name in links]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plot", "plot.png", "plot.html", "v1.2"])
def test_a_plot_is_a_picture_and_a_page(name: str, runs: Path) -> None:
    stem = runs.parent / name.removesuffix(".png").removesuffix(".html")
    result = run_command("evidence", str(runs), "--plot", str(runs.parent / name))
    assert result.code == 0, result.stderr
    picture = Path(f"{stem}.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    # The header chunk: length, name, then width and height, big-endian.
    assert struct.unpack(">II", picture[16:24]) == (SIZE_PX, SIZE_PX)
    page = Path(f"{stem}.html").read_text(encoding="utf-8")
    assert [page.count(f'"{name}"') for name in IDS] == [1, 1, 1]
    assert "untimed" not in page
    assert '"left"' not in re.findall(r'"id": ?("[^"]*")', page)


@pytest.mark.slow
def test_the_page_loads_nothing(runs: Path) -> None:
    run_command("evidence", str(runs), "--plot", str(runs.parent / "plot"))
    page = (runs.parent / "plot.html").read_text(encoding="utf-8")
    loads = Loads()
    loads.feed(page)
    assert loads.found == []
    assert "tp 2, pp 2, dp 4 x 1, micro-batch 2" in page
    pictures = re.findall(r"(?:<|\\u003c)svg ", page)
    assert len(pictures) == 2, "for a screen and for a phone"


@pytest.mark.slow
def test_the_band_is_20_percent_around_the_diagonal(runs: Path) -> None:
    run_command("evidence", str(runs), "--plot", str(runs.parent / "plot"))
    page = (runs.parent / "plot.html").read_text(encoding="utf-8")
    ends = re.findall(
        r'"measured_s": ([\d.]+), "predicted_s": ([\d.]+), "factor"', page
    )
    slopes = sorted({round(float(y) / float(x), 6) for x, y in ends})
    assert slopes == [0.8, 1.0, 1.2]
    # The lines reach from below the fastest run, 0.5 s, to above the slowest, 2 s.
    assert min(float(x) for x, _ in ends) < 0.5
    assert max(float(x) for x, _ in ends) > 2.0


def test_paths_that_cannot_be_written_are_refused_first(runs: Path) -> None:
    (runs.parent / "file").write_text("")
    told = refused(runs, runs.parent / "file" / "plot")
    assert f"--plot {runs.parent}/file/plot.png: not a directory" in told
    (runs.parent / "taken.html").mkdir()
    told = refused(runs, runs.parent / "taken")
    assert "taken.html: is a directory" in told
    assert not (runs.parent / "taken.png").exists()


def test_a_file_that_turns_unwritable_is_told(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meshwright.writing._replace", full)
    told = refused(runs, runs.parent / "plot")
    assert "plot.png: no space left on device" in told


def test_runs_without_times_have_no_plot(tmp_path: Path) -> None:
    file = tmp_path / "runs.yaml"
    file.write_text(json.dumps([row(measured={"fits": True})]))
    told = refused(file, tmp_path / "plot")
    assert "--plot: no run with a time can be priced" in told


@pytest.mark.parametrize("library", ["altair", "vl_convert"])
def test_a_missing_library_is_named_with_its_extra(
    library: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    told = refused(runs, runs.parent / "plot")
    assert "pip install 'meshwright[plot]'" in told
    assert not (runs.parent / "plot.png").exists()
