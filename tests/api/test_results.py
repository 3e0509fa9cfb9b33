"""Results: the data that commands print, back from it, and as notebooks show them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from typing import Any, Protocol, Self

import pytest

import meshwright as mw
from meshwright.results.claims import fullest_claim, limit_claim, plan_lines
from tests.helpers.command import ran
from tests.report.pages import data_of

FITS = "gpt2-xl-2xh100-nvlink"
LONG = "llama3-8b-2xh100-nvlink"
NONE_FITS = "llama3-8b-2x4090-pcie"
RUN = "mpt-30b-512xh100-90days"
SERVED = "serve-llama3-8b-1xa100"
NOT_SERVED = "serve-llama3-70b-2x4090-pcie"
TEXT = '<b onload="x">&\x1b[31m'

pytestmark = pytest.mark.usefixtures("kept_processes")


class AnyResult(Protocol):
    def to_dict(self) -> dict[str, Any]: ...

    def to_json(self) -> str: ...

    @classmethod
    def from_json(cls, text: str) -> Self: ...

    def _repr_html_(self) -> str: ...


CASES: dict[str, tuple[list[str], Callable[[], AnyResult]]] = {
    "solved": (["solve", FITS], lambda: mw.solve(mw.load(FITS))),
    "limits": (
        ["solve", FITS, "--ideal"],
        lambda: mw.solve(mw.load(FITS), framework_limits=True),
    ),
    "top": (["solve", FITS, "--top", "3"], lambda: mw.solve(mw.load(FITS), top=3)),
    "not solved": (["solve", NONE_FITS], lambda: mw.solve(mw.load(NONE_FITS))),
    "run": (["solve", RUN], lambda: mw.solve(mw.load(RUN))),
    "served": (["solve", SERVED], lambda: mw.solve(mw.load(SERVED))),
    "not served": (["solve", NOT_SERVED], lambda: mw.solve(mw.load(NOT_SERVED))),
    "explained": (["explain", FITS], lambda: mw.explain(mw.load(FITS))),
    "plan": (
        ["explain", FITS, "--plan", "tp=1,zero=0", "--collectives"],
        lambda: mw.explain(mw.load(FITS), {"tp": 1, "zero": 0}, collectives=True),
    ),
    "repaired": (["explain", NONE_FITS], lambda: mw.explain(mw.load(NONE_FITS))),
    "serving": (["explain", NOT_SERVED], lambda: mw.explain(mw.load(NOT_SERVED))),
    "compared": (
        ["compare", FITS, "--plan", "tp=1", "--plan", "tp=2"],
        lambda: mw.compare(mw.load(FITS, mw.Spec), ["tp=1", "tp=2"]),
    ),
}


@cache
def result(name: str) -> AnyResult:
    return CASES[name][1]()


class Text(HTMLParser):
    """The text of a page, its elements, and the page in its frame."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: set[str] = set()
        self.framed = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.framed = dict(attrs).get("srcdoc") or self.framed

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_data_is_what_commands_print(name: str) -> None:
    done = ran(*CASES[name][0], "--format", "json")
    assert result(name).to_json() == done.stdout
    assert result(name).to_dict() == json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_json_is_read_back(name: str) -> None:
    found = result(name)
    again = type(found).from_json(found.to_json())
    assert again.to_dict() == found.to_dict()
    shown, before = (data_of(Text(one._repr_html_()).framed) for one in (again, found))
    for part in ("title", "verdict", "plans"):
        assert shown[part] == before[part]


@pytest.mark.parametrize("text", ["", "[", "{}", "[]", '{"spec": 1}'])
@pytest.mark.parametrize("name", ["solved", "served", "explained", "compared"])
def test_other_json_is_refused(name: str, text: str) -> None:
    with pytest.raises(mw.SpecError, match="not the JSON of"):
        type(result(name)).from_json(text)


def broken(data: Any, places: int) -> Iterator[str]:
    """Yield JSON texts of data with a value left out, or another in its place."""
    paths: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in [*entries]:
            paths.append((value, key))
            if isinstance(inner, dict | list):
                walk(inner)

    walk(data)
    fewer = paths[:: max(1, len(paths) // places)] if places else paths
    top = [(data, key) for key in data]
    for parent, key in [*top, *fewer]:
        kept = parent[key]
        if isinstance(parent, dict):
            del parent[key]
            yield json.dumps(data)
        others: tuple[Any, ...] = (None, "x", -1, [], {})
        for other in others:
            parent[key] = other
            yield json.dumps(data)
        parent[key] = kept


@pytest.mark.parametrize("name", CASES)
def test_broken_json_is_read_or_refused(name: str) -> None:
    """No field that is left out, and no other value, ends in an error of pydantic."""
    found = type(result(name))
    for text in broken(json.loads(result(name).to_json()), 60):
        with contextlib.suppress(mw.SpecError):
            assert found.from_json(text).to_dict()


@pytest.mark.parametrize("name", ["solved", "served"])
def test_a_part_of_a_plan_is_refused(name: str) -> None:
    data = result(name).to_dict()
    for field in ("plan", "time", "memory", "bound_s", "gap", "solver"):
        text = json.dumps({key: one for key, one in data.items() if key != field})
        with pytest.raises(mw.SpecError, match=f"{field} is missing beside"):
            type(result(name)).from_json(text)


@pytest.mark.parametrize("name", CASES)
def test_notebooks_show_the_page_or_the_text(name: str) -> None:
    shown = Text(result(name)._repr_html_())
    assert shown.tags == {"div", "pre", "iframe"}
    assert "".join(shown.text) == str(result(name))
    page = data_of(shown.framed)
    assert page["title"] == result(name).to_dict().get("title", page["title"])
    assert page["verdict"] or page["sections"]


@pytest.mark.parametrize("name", CASES)
def test_an_answer_prints_its_screen(name: str) -> None:
    told = str(result(name))
    lines = told.splitlines()
    assert max(map(len, lines)) <= 80
    assert "--verbose" not in told
    found = result(name)
    best = getattr(found, "best", None)
    if isinstance(found, mw.Outcome) and best is not None:
        assert len(lines) <= 40 or name in ("limits", "top")
        words = " ".join(told.split())
        for claim in (fullest_claim(best), limit_claim(best)):
            assert claim in words


@pytest.mark.parametrize("spec", [FITS, NONE_FITS])
def test_notebooks_show_text_of_users_as_text(spec: str) -> None:
    loaded = mw.load(spec, mw.Spec)
    gpu = loaded.cluster.topology.gpu.model_copy(update={"name": TEXT})
    topology = loaded.cluster.topology.model_copy(update={"gpu": gpu})
    cluster = loaded.cluster.model_copy(update={"topology": topology})
    outcome = mw.solve(loaded.model_copy(update={"cluster": cluster}))
    shown = Text(outcome._repr_html_())
    framed = Text(shown.framed)
    assert "b" not in shown.tags | framed.tags
    assert '<b onload="x">&\\x1b[31m' in "".join(shown.text)
    assert TEXT in data_of(shown.framed)["title"]


def test_a_search_is_read_back() -> None:
    sweep = {"base": LONG, "sweep": {"training.seq_len": [4096, 8192, 10**6]}}
    found = mw.search(sweep, workers=1, front=("step_s", "peak_gib"))
    again = mw.SearchResult.from_json(found.to_json())
    assert again.to_dict() == found.to_dict() == json.loads(found.to_json())
    assert again.rows == found.rows
    assert again.errors == found.errors
    for text in broken(found.to_dict(), 60):
        with contextlib.suppress(mw.SpecError):
            assert mw.SearchResult.from_json(text).to_dict()
    assert again._repr_html_() == found._repr_html_()
    shown = Text(found._repr_html_())
    told = f"3 cases: {found.counts['optimal']} feasible, 1 infeasible"
    assert told in "".join(shown.text)
    assert told in data_of(shown.framed)["verdict"][0]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["best", "metric"])
def test_a_search_with_loose_ends_is_refused(part: str) -> None:
    found = mw.search({"base": FITS, "sweep": {"pins.tp": [[1]]}}, workers=1)
    data = {**found.to_dict(), part: {"x": "no such key"} if part == "best" else "x"}
    with pytest.raises(mw.SpecError, match="not the JSON of a search"):
        mw.SearchResult.from_json(json.dumps(data))


def test_sums_of_an_embedding_are_not_called_data_parallelism() -> None:
    """Two stages of GPT-2 copy its tied embedding, and nothing is replicated."""
    fields = {
        "model": "gpt2-xl",
        "cluster": {"gpu": "rtx-3090", "count": 2},
        "framework": "megatron",
        "training": {"seq_len": 1024, "global_batch": 2},
        "pins": {"tp": 1, "pp": 2, "micro_batch": 1},
    }
    best = mw.solve(mw.load(fields, mw.Spec)).best
    assert best is not None
    assert best.plan.dp == 1
    assert best.time_parts["dp"] > 0.01 * best.step_s
    assert "copies of the embedding " in limit_claim(best)
    assert " dp " not in limit_claim(best)


def test_a_plan_in_lines_says_the_layers_of_unlike_stages() -> None:
    """32 layers are on 7 stages; on 4 of them every stage has 8."""
    fields = {
        "model": "llama3-8b",
        "cluster": {"gpu": "h100", "count": 7},
        "training": {"seq_len": 4096, "global_batch": 64},
        "pins": {"pp": 7},
    }
    best = mw.solve(mw.load(fields, mw.Spec)).best
    assert best is not None
    layers = [stage.layers for stage in best.plan.stages]
    assert f" · layers {layers}" in plan_lines(best.plan)[1]
    again = {**fields, "pins": {"pp": 7, "layers": layers}}
    assert mw.solve(mw.load(again, mw.Spec)).best == best
    alike = {**fields, "cluster": {"gpu": "h100", "count": 4}}
    even = mw.load({**alike, "pins": {"pp": 4, "layers": [8] * 4}}, mw.Spec)
    found = mw.solve(even).best
    assert found is not None
    assert "layers" not in plan_lines(found.plan)[1].partition("mesh")[2]
    many = mw.load(
        {
            **fields,
            "cluster": {"gpu": "h100", "count": 16},
            "pins": {"pp": 16, "layers": [3, *[2] * 14, 1]},
        },
        mw.Spec,
    )
    deep = mw.solve(many).best
    assert deep is not None
    assert " · layers [3, 2 x 14, 1]" in plan_lines(deep.plan)[1]
