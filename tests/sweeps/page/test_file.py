"""The page of a search as a file: what is in it, and what it may do."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import SpecError
from meshwright.sweeps.export import TITLE, export, page_data
from meshwright.sweeps.metrics import METRICS
from tests.sweeps.page.rows import HOSTILE, planned, rows

pytest.importorskip("plotly", reason="needs Plotly: pip install -e '.[html]'")


class Parts(HTMLParser):
    """Collects scripts, data, title, policy, and whatever would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"script": [], "title": [], "h1": []}
        self.data = ""
        self.policy = ""
        self.loads: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loads += [f"{tag} {n}" for n in found if n in ("src", "href", "srcset")]
        if found.get("http-equiv"):
            self.policy = found["content"] or ""
        is_data = found.get("type") == "application/json"
        self._inside = "data" if is_data else tag
        if self._inside in self.texts:
            self.texts[self._inside].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif self._inside in self.texts:
            self.texts[self._inside][-1] += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    path = tmp_path_factory.mktemp("page") / "out.html"
    export(rows(), path)
    parts = Parts()
    parts.feed(path.read_text(encoding="utf-8"))
    return parts


def column(page: Parts, name: str) -> dict[str, Any]:
    found = [load for load in json.loads(page.data)["columns"] if load["name"] == name]
    assert len(found) == 1
    result: dict[str, Any] = found[0]
    return result


def test_user_text_ends_no_element(page: Parts) -> None:
    assert page.texts["title"] == page.texts["h1"] == [TITLE]
    assert column(page, "case")["values"] == [row.name for row in rows()]
    assert "<" not in page.data, "nothing in the data can open or close an element"
    assert not [text for text in page.texts["script"] if "window.hacked" in text]


def test_page_loads_nothing(page: Parts) -> None:
    assert page.loads == []
    assert page.policy.startswith("default-src 'none'; ")
    assert "http" not in page.policy


def test_only_its_own_scripts_may_run(page: Parts) -> None:
    """The policy lists the hash of every script, and no wild card."""
    digests = {
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
        for text in page.texts["script"]
    }
    allowed = page.policy.split("script-src ")[1].split()
    assert set(allowed) == digests | {"'unsafe-eval'"}
    assert len(digests) == len(page.texts["script"]) > 1


@pytest.mark.parametrize("name", ["step_s", "tokens_per_s", "headroom_gib"])
def test_metrics_are_exact(name: str, page: Parts) -> None:
    found = column(page, name)
    assert found["values"] == [getattr(row, name) for row in rows()]
    assert found["best"] == METRICS[name].better


def test_columns_are_what_is_known_and_varies(page: Parts) -> None:
    """No metric that no row has, no plan field that all plans share."""
    names = [load["name"] for load in json.loads(page.data)["columns"]]
    assert names[:2] == ["case", "status"]
    assert names[-1] == "why no plan"
    assert set(rows()[0].axes) | {HOSTILE[1]} <= set(names)
    assert "usd_per_mtoken" not in names
    plans = [rows()[i].plan for i in planned()]
    for field in ("tp", "pp", "vpp", "zero", "schedule", "offload"):
        differs = len({getattr(plan, field) for plan in plans}) > 1
        assert (field in names) == differs, field


def test_stages_of_a_pipeline_are_told(page: Parts) -> None:
    cases = json.loads(page.data)["cases"]
    staged = [i for i in planned() if rows()[i].plan.pp == 2]  # type: ignore[union-attr]
    assert staged
    for i in staged:
        plan = rows()[i].plan
        assert plan is not None
        layers = [
            int(n)
            for line in cases[i]["plan"]
            for n in re.findall(r"^stages? .*: (\d+) layers", line)
        ]
        assert set(layers) == {stage.layers for stage in plan.stages}


def test_numbers_that_json_lacks_are_unknown(tmp_path: Path) -> None:
    endless = rows()[0].model_copy(update={"mfu": float("inf")})
    export([endless, *rows()], tmp_path / "out.html")
    parts = Parts()
    parts.feed((tmp_path / "out.html").read_text(encoding="utf-8"))
    assert column(parts, "mfu")["values"][0] is None


def test_same_rows_make_the_same_page(tmp_path: Path) -> None:
    paths = [tmp_path / "a.html", tmp_path / "b.html"]
    for path in paths:
        export(rows(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("count", [0, 2], ids=["none", "no plan"])
def test_any_rows_make_a_page(count: int, tmp_path: Path) -> None:
    some = rows()[len(rows()) - count :]
    export(some, tmp_path / "out.html")
    parts = Parts()
    parts.feed((tmp_path / "out.html").read_text(encoding="utf-8"))
    assert len(json.loads(parts.data)["cases"]) == len(some)


def test_unwritable_path_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "out.html"
    with pytest.raises(SpecError, match=r"absent/out\.html: no such file or directory"):
        export(rows(), path)


def test_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(SpecError, match=r"pip install 'meshwright\[html\]'"):
        export(rows(), tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_pages_open_on_the_front_of_the_sweep(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    export(rows(), path, ("headroom_gib", "mfu", "gpus"))
    parts = Parts()
    parts.feed(path.read_text(encoding="utf-8"))
    assert json.loads(parts.data)["front"] == ["headroom_gib", "mfu"]


def test_pages_are_small(tmp_path: Path) -> None:
    export(rows(), tmp_path / "out.html")
    assert (tmp_path / "out.html").stat().st_size <= 2_000_000


SHARED = "llama3-8b on {} x h100 (dgx-h100), megatron, sequence {}, batch 512"


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["a, b", "a, c"], ["b", "c"]),
        (["a, b", "a, b"], ["a, b", "a, b"]),
        (["a", "a, b"], ["a", "a, b"]),
        (["only one"], ["only one"]),
        ([], []),
        (
            [SHARED.format(8, "8,192"), SHARED.format(16, "4,096")],
            ["8 x h100, sequence 8,192", "16 x h100, sequence 4,096"],
        ),
    ],
)
def test_cases_are_named_by_what_differs(names: list[str], labels: list[str]) -> None:
    some = [rows()[0].model_copy(update={"name": name}) for name in names]
    assert page_data(some)["labels"] == labels
