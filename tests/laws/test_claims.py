"""What surfaces say of the plans of an answer, held against its numbers and each other.

Every bundled spec is solved once, and its answer walked through terminal text,
markdown, the data of reports, JSON and notebooks.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.api.html_report import report_data
from meshwright.report.explain import explain_sections
from meshwright.report.render import (
    as_text,
    outcome_sections,
    sections_as_markdown,
    sections_as_text,
)
from meshwright.report.screen import COLUMNS, LINES, screen_sections
from meshwright.results.claims import (
    FASTEST,
    RECOMMENDED,
    name_of,
    proof_claim,
    safety_claims,
    seconds_text,
)
from meshwright.results.outcome import Outcome
from tests.helpers.command import unwrapped

SPECS = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "specs").glob("*.yaml")
    if not path.stem.startswith("serve-")
)

SIMPLER = "llama3-8b-2xa100-pcie"
"""A spec whose recommended plan is not the fastest."""

NONE_FASTER = re.compile(r"Proven: none of [\d,]+ legal plans?[^:;]* is faster")

OPEN: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"topology": "dgx-a100", "count": [1, 2]},
    "framework": "megatron",
    "training": {"seq_len": 4096, "global_batch": 64},
    "objective": [{"gpus": "0%"}, {"step_s": "2%"}, "simplest"],
}
"""A spec that leaves the number of machines open."""


@cache
def solved(name: str) -> Outcome:
    return mw.solve(mw.load(name, mw.Spec), by_kind=False, near=near_of(name))


@cache
def page_of(name: str) -> dict[str, Any]:
    return report_data(mw.load(name, mw.Spec), solved(name))


def near_of(name: str) -> float:
    """Return the share within which all plans are found; none on unlike parts."""
    return 0.0 if mw.load(name, mw.Spec).cluster.parts else 0.005


def surfaces(outcome: Outcome, name: str) -> dict[str, str]:
    """Return an answer as each surface prints it."""
    page = page_of(name)
    # Markdown escapes some signs, and what it says is the same without them.
    markdown = sections_as_markdown(outcome_sections(outcome)).replace("\\", "")
    return {
        "terminal": as_text(outcome),
        "screen": unwrapped(sections_as_text(screen_sections(outcome, name), COLUMNS)),
        "markdown": markdown,
        "page": "\n".join(page["verdict"]),
        "JSON": outcome.to_json(),
        "notebook": outcome._repr_html_(),
    }


@pytest.mark.parametrize("name", SPECS)
def test_every_surface_prints_one_claim_and_it_is_true(name: str) -> None:
    outcome = solved(name)
    best, fastest, known = outcome.best, outcome.optimum, outcome.certificate
    claim = proof_claim(outcome)
    if best is None or fastest is None or known is None:
        assert claim == ""
        return
    assert known.bound_s <= fastest.step_s + known.rounding_s
    assert fastest.step_s <= best.step_s
    assert best.doubted_s <= fastest.doubted_s * (1 + known.tolerance)
    assert seconds_text(fastest.step_s) in claim
    for surface, text in surfaces(outcome, name).items():
        assert claim in text, surface
        is_shown_fastest = outcome.status == "optimal" and outcome.fastest is None
        assert bool(NONE_FASTER.search(text)) == is_shown_fastest, surface


@pytest.mark.parametrize("name", SPECS)
def test_an_answer_is_one_screen(name: str) -> None:
    outcome = solved(name).model_copy(update={"near": None})
    lines = sections_as_text(screen_sections(outcome, name), COLUMNS).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert lines[-1] == f"  All of it: meshwright solve {name} --verbose"
    if outcome.best is None:
        assert f"  Mend it: meshwright explain {name}" in lines
        assert "No plan fits" in "".join(lines)


@pytest.mark.parametrize("name", SPECS)
def test_no_saving_is_negative(name: str) -> None:
    run, text = solved(name).run, as_text(solved(name))
    saves = run is not None and any((s.saved_days or 0) > 0 for s in run.compression)
    assert ("days saved" in text) == saves
    _, _, table = text.partition("days saved")
    assert not re.search(r" -[\d,.]+", table.partition("\n\n")[0])


@pytest.mark.parametrize("name", SPECS)
def test_the_headline_is_the_recommended_plan(name: str) -> None:
    outcome = solved(name)
    if outcome.best is None:
        return
    step = seconds_text(outcome.best.step_s)
    told = surfaces(outcome, name)
    assert f"\n  step {step} · " in told["terminal"]
    assert f"\n- step {step} · " in told["markdown"]
    assert told["page"].startswith(f"The recommended plan takes {step} a step")
    printed = json.loads(told["JSON"])
    assert printed["step_s"] == outcome.best.step_s
    page = page_of(name)
    assert page["plans"][0]["name"] == RECOMMENDED
    assert page["plans"][0]["stepS"] == pytest.approx(outcome.best.step_s, rel=1e-4)
    names = {own["why"]: own["stepS"] for own in page["near"]}
    assert names[RECOMMENDED] == pytest.approx(outcome.best.step_s, rel=1e-4)
    if outcome.fastest is not None:
        assert names[FASTEST] == pytest.approx(outcome.fastest.step_s, rel=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_other_risks_are_compared_with_the_fastest_plan(name: str) -> None:
    outcome = solved(name)
    asked = mw.load(name, mw.Spec).limits
    if outcome.optimum is None:
        return
    fastest_s = outcome.optimum.step_s
    least_s = fastest_s * (1 - 1e-9)
    for choice, claim in zip(outcome.safety, safety_claims(outcome), strict=True):
        if choice.step_s is not None and choice.oom_risk < asked.risk:
            assert choice.step_s >= least_s
            assert "takes -" not in claim
        if choice.step_s is not None and choice.oom_risk > asked.risk:
            assert choice.step_s <= fastest_s * (1 + 1e-9)
            assert "takes +" not in claim
        page = json.dumps(page_of(name))
        assert json.dumps(claim)[1:-1] in page
        assert claim in as_text(outcome)


@pytest.mark.parametrize("name", SPECS)
def test_the_first_near_plan_is_the_fastest(name: str) -> None:
    outcome = solved(name)
    if outcome.near is None:
        return
    assert outcome.optimum is not None
    assert outcome.near.plans[0].step_s == outcome.optimum.step_s
    assert outcome.near.plans[0].plan == str(outcome.optimum.plan)
    assert all(own.values[0].loss == 0 for own in outcome.near.decisions)


def test_explain_names_the_plans_that_solve_names() -> None:
    outcome = solved(SIMPLER)
    spec = mw.load(SIMPLER, mw.Spec)
    assert outcome.best is not None
    assert outcome.fastest is not None
    for told in (mw.explain(spec), mw.explain(spec, "tp=2"), mw.explain(spec, "pp=2")):
        assert told.best is not None
        assert told.best.best == outcome.best
        assert told.best.fastest == outcome.fastest
        assert proof_claim(told.best) == proof_claim(outcome)
        text = sections_as_text(explain_sections(told))
        step, fastest = map(seconds_text, (outcome.best.step_s, outcome.fastest.step_s))
        assert f"The recommended plan takes {step} a step: {outcome.best.plan}" in text
        assert (
            f"The fastest plan takes {fastest} a step: {outcome.fastest.plan}" in text
        )
        assert proof_claim(outcome) in text
        assert proof_claim(outcome) in told._repr_html_()
        assert "best" not in text
    assert told.plan is not None
    assert name_of(outcome, told.plan.plan) == RECOMMENDED
    assert f"{RECOMMENDED}, 0.25% slower than {FASTEST}; rank" in text


def test_an_open_answer_claims_no_more_than_its_choice() -> None:
    outcome = mw.solve(mw.load(OPEN))
    assert isinstance(outcome, Outcome)
    assert outcome.open is not None
    assert outcome.certificate is not None
    claim = proof_claim(outcome)
    assert " of this choice" in claim
    assert claim in as_text(outcome)
    gap = 0.3
    known = outcome.certificate.model_copy(update={"gap": gap, "left_open": "Open."})
    undecided = outcome.model_copy(update={"status": "feasible", "certificate": known})
    told = proof_claim(undecided)
    assert "a choice that was left open may be 30.00% better" in told
    assert "(gap 0.00%)" in told
    assert "(gap 30" not in as_text(undecided)
