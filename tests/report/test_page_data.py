"""What the charts of a page draw, against the answer that they draw."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.api.price import timeline
from meshwright.report.pages.answer import CHARTS
from meshwright.report.pages.plan_data import (
    MOST_HOSTS,
    cluster_data,
    mesh_data,
    timeline_data,
)
from meshwright.report.pages.skeleton import FILES, SHARED
from meshwright.report.simulation import WORDS
from tests.helpers.plans import best_of
from tests.report.pages import POD, POD_PINS, data_of, page

close = pytest.approx


@pytest.fixture(scope="module")
def pod() -> tuple[mw.Spec, mw.PricedPlan]:
    spec = mw.load(POD, mw.Spec, pins=list(POD_PINS))
    best = mw.solve(spec).best
    assert best is not None
    return spec, best


@pytest.mark.slow
@pytest.mark.parametrize("most", [200, 2_000, 10**6])
def test_timelines_fold_and_lose_nothing(
    pod: tuple[mw.Spec, mw.PricedPlan], most: int
) -> None:
    spec, best = pod
    whole = timeline(spec, best.plan)
    data = timeline_data(whole, most)
    tasks = sum(len(stage["spans"]) for stage in data["stages"])
    left_out = data["fold"]["tasks"] if data["fold"] else 0
    assert tasks + left_out == 16 * 4 * 64 * len("FB")
    assert tasks <= most + 2 * 16, "and at most those that a fold cuts"
    assert (left_out > 0) == (most < 10**6)
    assert data["stepS"] == close(best.schedule_s)
    for stage, one in zip(data["stages"], whole.stages, strict=True):
        assert sum(stage["busy"].values()) == close(sum(one.busy_s.values()))
        starts = [span[3] for span in stage["spans"]]
        assert starts == sorted(starts)
        for kind, _, chunk, start_s, end_s in stage["spans"]:
            takes_s = sum(seconds for _, _, seconds in stage["parts"][f"{kind}{chunk}"])
            assert end_s - start_s == close(takes_s, rel=1e-3)
            assert kind in WORDS


@pytest.mark.slow
def test_large_clusters_are_folded_to_the_hosts_of_a_group(
    pod: tuple[mw.Spec, mw.PricedPlan],
) -> None:
    spec, best = pod
    data = mesh_data(spec.cluster, best.plan)
    assert [axis["name"] for axis in data["axes"]] == [
        *("tp", "cp", "dp_shard", "dp_replicate", "pp")
    ]
    assert 2 < len(data["hosts"]) <= MOST_HOSTS
    gpus = [gpu for host in data["hosts"] for gpu in host["gpus"]]
    zero = gpus[0]
    assert zero["rank"] == 0
    for i, axis in enumerate(data["axes"]):
        peers = [
            gpu
            for gpu in gpus
            if [k for k in range(5) if gpu["at"][k] != zero["at"][k]] == [i]
        ]
        assert peers, f"one that rank 0 talks to along {axis['name']} is drawn"
    assert data["axes"][-1]["over"] == "spine"


@pytest.mark.parametrize(
    "name", ["gpt-1.3b-2xh100-nvlink", "gpt-1.3b-dgx-1v", "llama2-13b-8xa100"]
)
def test_every_load_is_on_a_link_that_is_drawn(name: str) -> None:
    spec = mw.load(name, mw.Spec)
    best = best_of(spec)
    assert best is not None
    data = cluster_data(spec.cluster, best)
    drawn = {phase for line in data["lines"] for phase in line["phases"]}
    assert drawn == {load.phase for load in best.all_links}
    for phase in drawn:
        most = max(line["phases"].get(phase, 0.0) for line in data["lines"])
        loads = [load.seconds for load in best.all_links if load.phase == phase]
        assert most == close(max(loads), rel=1e-5)


def test_parts_add_up() -> None:
    (plan,) = data_of(page("solve gpt-1.3b-2xh100-nvlink"))["plans"]
    assert sum(seconds for _, seconds in plan["time"]) == close(plan["stepS"], rel=1e-5)
    for group in plan["memory"]["groups"]:
        assert sum(group["parts"].values()) == close(group["total"], rel=1e-5)
        assert group["total"] <= group["usable"] <= group["capacity"]


def test_plans_near_the_best_are_told_once() -> None:
    data = data_of(page("explain gpt-1.3b-2xh100-nvlink"))
    near = data["near"]
    assert [one["stepS"] for one in near] == sorted(one["stepS"] for one in near)
    assert sum(one["isFirst"] for one in near) == 1
    assert next(one for one in near if one["isFirst"])["why"] == "the recommended plan"
    assert all(0 <= one["risk"] <= 1 for one in near)
    assert data["risk"] == close(0.05)
    assert data["worth"]


def test_plans_that_do_not_fit_are_not_launched() -> None:
    data = data_of(page("explain llama3-8b-2x4090-pcie"))
    (plan,) = data["plans"]
    assert "does not fit" in plan["note"]
    assert plan["launch"] is None
    assert not data["hasPlan"]


def _colours(scheme: str) -> dict[str, str]:
    css = (FILES / "page.css").read_text("utf-8")
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    found = light if scheme == "light" else dark.split("@media")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", found))


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(a: str, b: str) -> float:
    """Return the contrast of two colours (WCAG 2.2, 1.4.3)."""
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_from_their_ground(scheme: str) -> None:
    found = _colours(scheme)
    for ground in ("ground", "panel"):
        for ink in ("ink", "faint", "accent", "alarm", "good"):
            assert _contrast(found[ink], found[ground]) >= 4.5, (ink, ground)
    fills = [found[f"c{i}"] for i in range(1, 9)]
    for fill in fills:
        assert _contrast(fill, found["ground"]) >= 3
        assert _contrast("#10161c", fill) >= 4.5, "numbers on tasks"


def test_every_script_is_on_a_page() -> None:
    files = {file.stem for file in Path(FILES).glob("*.js")}
    assert files == {*SHARED, *CHARTS, "page", "chart"}


def _named_colours() -> dict[str, str]:
    """Return the number of the colour that each name has on all pages."""
    script = (FILES / "colours.js").read_text("utf-8")
    table = script[script.index("COLOUR_OF = {") : script.index("};")]
    return {
        quoted or plain: number
        for quoted, plain, number in re.findall(r'(?:"([^"]+)"|(\w+)): (\d)', table)
    }


SERVED = "serve-llama3-8b-1xa100"


@pytest.mark.parametrize("name", ["pipeline", "explain llama3-8b-2x4090-pcie", SERVED])
def test_parts_have_colours_by_name(name: str) -> None:
    """A part is the same colour on every page, whatever stands beside it."""
    colours = _named_colours()
    if name == SERVED:
        spec = mw.load(SERVED, mw.ServingSpec)
        text = mw.html_report(spec, mw.solve(spec))
    else:
        text = page(name)
    for plan in data_of(text)["plans"]:
        memory = plan["memory"]["names"]
        assert len({colours[part] for part in memory}) == len(memory)
        times = plan.get("times") or [{"parts": plan["time"]}]
        for time in times:
            assert {part for part, _ in time["parts"]} <= set(colours)
        for work in plan.get("timeline", {}).get("stages", [{}])[0].get("busy", {}):
            assert work in colours
