"""Every command that answers a spec, with every output at once: they say the same.

`--all` takes every bundled spec, the gate one that fits, one that does not, one of
unlike parts, one of serving and one of an irregular host.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.agents.tools import TOOLS, schema_of
from meshwright.results.claims import seconds_text
from tests.helpers.agent_calls import told
from tests.helpers.command import Result, run
from tests.helpers.extent import gate
from tests.report.pages import data_of

FEW = (
    *("gpt2-xl-2xh100-nvlink", "llama3-8b-2x4090-pcie", "gpt2-xl-2x3090-2x4090"),
    *("serve-llama3-8b-1xa100", "gpt-1.3b-dgx-1v"),
)
SPECS = sorted(
    path.stem for path in (Path(__file__).parents[2] / "specs").glob("*.yaml")
)

PAGES = ("--format", "json", "-o", "answer.json", "--report", "page.html")
OF_PLANS = ("--trace", "step.json", "--ranks", "ranks", "--export", "files")
SOLVED = ("--top", "2", "--verbose", "--show-model", *PAGES, *OF_PLANS)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kept_processes")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tried(*words: str) -> Result:
    """Return how a command ends: with an answer, or refused in one line."""
    done = run(*words)
    assert done.code in (0, 1, 2), done
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == (done.code == 2), done
    return done


def printed(path: str) -> Any:
    return json.loads(Path(path).read_text("utf-8"))


@pytest.mark.parametrize("name", gate(FEW, everything=SPECS))
def test_all_outputs_of_a_solve_are_of_one_plan(name: str, folder: Path) -> None:
    spec = mw.load(name)
    is_training = isinstance(spec, mw.Spec)
    done = tried("solve", name, *(SOLVED if is_training else PAGES))
    assert done.code < 2, done
    told, page = printed("answer.json"), data_of(Path("page.html").read_text("utf-8"))
    fits = told["status"] == "optimal"
    assert done.code == int(not fits)
    assert fits or told["status"] == "infeasible"
    if not is_training:
        return
    assert isinstance(spec, mw.Spec)
    if not fits:
        assert {path.name for path in folder.iterdir()} == {"answer.json", "page.html"}
        for option in ("--trace", "--ranks", "--export"):
            assert f"note: {option}: nothing is written" in done.stderr
        return
    step = seconds_text(told["step_s"])
    assert page["plans"][0]["stepS"] == pytest.approx(told["step_s"], rel=1e-4)
    assert step in "\n".join(page["verdict"])
    with Path("ranks/ranks.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == spec.cluster.gpus
    assert any(Path("files").iterdir())
    assert printed("step.json")["traceEvents"]


@pytest.mark.parametrize("name", gate(FEW, everything=SPECS))
def test_a_certificate_is_of_the_same_plan_or_refused_before_the_solve(
    name: str, folder: Path
) -> None:
    done = tried("solve", name, *PAGES, "--certificate", "cert.json.gz")
    if done.code == 2:
        assert "certificate" in done.stderr
        assert list(folder.iterdir()) == []
        return
    told, checked = printed("answer.json"), tried("verify", "cert.json.gz")
    assert checked.code == 0
    fits = told["status"] == "optimal"
    assert ("no plan fits" in checked.stdout) == (not fits)
    if fits:
        fastest = told.get("fastest", told)
        (told_s,) = re.findall(r"^fastest: [^:]*: ([\d.]+) s$", checked.stdout, re.M)
        least_s = fastest.get("step_s", fastest.get("objective_s"))
        assert float(told_s) == pytest.approx(least_s, rel=1e-6)
        assert f"fastest: tp {fastest['plan']['tp']}, " in checked.stdout


@pytest.mark.parametrize("name", gate(FEW[:2], everything=SPECS))
def test_other_commands_say_what_solve_says(name: str) -> None:
    tried("solve", name, "--format", "json", "-o", "solved.json")
    solved = printed("solved.json")
    explained = tried("explain", name, *PAGES, "--trace", "step.json")
    assert explained.code < 2 or "--trace" in explained.stderr
    if explained.code < 2:
        told = printed("answer.json")
        assert told["fits"] == (solved["status"] == "optimal")
        if told["fits"] and "step_s" in solved and told.get("plan"):
            assert told["plan"]["step_s"] == pytest.approx(solved["step_s"])
    tried("compare", name, "--format", "json", "-o", "compared.json")
    tried("simulate", name, "--samples", "10", "--report", "simulated.html")
    tried("probe", name, "-k", "1", "-o", "probes")
    tried("check", name)


@pytest.mark.parametrize("name", gate(FEW[:2], everything=SPECS))
def test_tools_of_agents_say_what_solve_says(name: str) -> None:
    tried("solve", name, "--format", "json", "-o", "solved.json")
    solved = printed("solved.json")
    for tool in TOOLS:
        if "spec" not in schema_of(tool)["properties"]:
            continue
        told_of = told(tool, {"spec": name})
        assert told_of, tool
        if tool == "solve" and "step_s" in solved:
            assert seconds_text(solved["step_s"]) in told_of
