"""The law of surfaces: what they say of an answer, against its numbers and each other.

Answers of bundled specs, random ones, misses and serving are walked through terminal,
screen, markdown, the data of reports, JSON and notebooks. `--all` takes all of them.
"""

from __future__ import annotations

import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import meshwright as mw
from meshwright.api.files import report_data
from meshwright.report.explain import explain_sections
from meshwright.report.screen import COLUMNS, LINES, full_sections, screen_sections
from meshwright.report.tables import (
    sections_as_markdown,
    sections_as_text,
)
from meshwright.results.claims import (
    FASTEST,
    RECOMMENDED,
    familiarity_claim,
    miss_claims,
    name_of,
    probability_text,
    proof_claim,
    published_claims,
    safety_claims,
    seconds_text,
)
from meshwright.results.outcome import Outcome
from tests.helpers.command import unwrapped
from tests.helpers.extent import gate
from tests.helpers.texts import whole_text
from tests.laws.specs import any_data, served_data
from tests.report.pages import data_of

SPECS = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "specs").glob("*.yaml")
    if not path.stem.startswith("serve-")
)

SIMPLER = "llama2-13b-8xa100"
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
    return _page(mw.load(name, mw.Spec), solved(name))


def _page(spec: Any, answer: Any) -> dict[str, Any]:
    return report_data(spec, answer)


def near_of(name: str) -> float:
    """Return the share within which all plans are found; none on unlike parts."""
    return 0.0 if mw.load(name, mw.Spec).cluster.parts else 0.005


def surfaces(outcome: Outcome, name: str) -> dict[str, str]:
    """Return an answer as each surface prints it."""
    return {
        **told(outcome, page_of(name), name),
        "JSON": outcome.to_json(),
    }


def told(answer: Any, page: dict[str, Any], name: str) -> dict[str, str]:
    """Return an answer of any kind as each surface for people prints it."""
    sections = full_sections(answer)
    # Markdown escapes some signs, and what it says is the same without them.
    markdown = html.unescape(sections_as_markdown(sections).replace("\\", ""))
    screen = sections_as_text(screen_sections(answer, name), COLUMNS)
    return {
        "terminal": sections_as_text(sections),
        "screen": unwrapped(screen),
        "markdown": markdown,
        "page": "\n".join(page["verdict"]),
        "notebook": _notebook(answer),
    }


def _notebook(answer: Any) -> str:
    """Return what a notebook shows: the verdict and the parts that follow it."""
    page = data_of(html.unescape(answer._repr_html_()))
    return "\n".join([*page["verdict"], json.dumps(page, ensure_ascii=False)])


MFU = re.compile(r"MFU ([\d.]+%)")
PLANS = re.compile(r"none of ([\d,]+) legal plans?")
LEAST = re.compile(r"no plan[^.;:]* takes less than ([\d,.]+ m?s)")
FITS = re.compile(r"fits with probability ((?:above |below )?\d\.\d\d)", re.I)


def _rounded(seconds: str) -> str:
    """Return a time, which the certificate has with more digits, as claims have it."""
    number, unit = seconds.replace(",", "").split()
    return seconds_text(float(number) / (1e3 if unit == "ms" else 1))


def hold(outcome: Outcome, page: dict[str, Any], name: str) -> None:
    """Hold every number and claim of a training answer against the others."""
    best, known = outcome.best, outcome.certificate
    texts = told(outcome, page, name)
    if best is None:
        assert page["plans"] == [] or page["plans"][0]["name"] == "the nearest miss"
        for surface, text in texts.items():
            assert ("No plan fits." in text) == (outcome.status == "infeasible")
            assert "Proven:" not in text, surface
            assert not MFU.search(text), surface
            rules = outcome.near_miss.broken_rules if outcome.near_miss else ()
            for rule in rules:
                assert unwrapped(rule.sentence) in unwrapped(text), surface
            for claim in miss_claims(outcome):
                assert unwrapped(claim) in unwrapped(text), surface
        return
    claims = [*published_claims(outcome), *filter(None, [proof_claim(outcome)])]
    mfu, rate = f"{best.mfu:.1%}", f"{best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    for surface, text in texts.items():
        assert seconds_text(best.step_s) in text, surface
        assert rate in text, surface
        assert familiarity_claim(best).lower() in text.lower(), surface
        # What was published of others may have another MFU, and a run has its own.
        found = [value for claim in claims[:-1] for value in MFU.findall(claim)]
        assert mfu in MFU.findall(text), surface
        assert {*MFU.findall(text)} <= {mfu, *found}, surface
        for claim in claims if known is not None else ():
            assert claim in text, surface
        if known is not None:
            assert {*PLANS.findall(text)} <= {f"{known.counts.skeletons:,}"}
            least = {_rounded(value) for value in LEAST.findall(text)}
            assert least <= {seconds_text(known.bound_s)}, surface
        likely = probability_text(best.fit_probability)
        assert {*FITS.findall(text)} <= {likely}, surface
    facts = dict(page["plans"][0]["facts"])
    assert facts["Step"] == seconds_text(best.step_s)
    assert facts["MFU"] == mfu
    assert f"{facts['Tokens/s/GPU']} tokens/s/GPU" == rate
    assert facts["Fits with probability"] == probability_text(best.fit_probability)
    printed = json.loads(outcome.to_json())
    assert printed["claim"] == proof_claim(outcome)
    assert printed["mfu"] == best.mfu
    assert printed["tokens_per_s_per_gpu"] == best.tokens_per_s_per_gpu
    assert printed["memory"]["fit_probability"] == best.fit_probability


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
def test_numbers_and_claims_agree(name: str) -> None:
    hold(solved(name), page_of(name), name)


@settings(max_examples=gate(3, everything=100), deadline=None)
@given(any_data())
def test_numbers_and_claims_of_random_specs_agree(data: dict[str, Any]) -> None:
    spec = mw.load(data, mw.Spec)
    outcome = mw.solve(spec, by_kind=False)
    hold(outcome, _page(spec, outcome), "spec.yaml")
    if outcome.status == "infeasible":
        hold_explanation(spec, outcome, "spec.yaml")


MISSES = gate(["llama3-8b-2x4090-pcie"], everything=SPECS)


@pytest.mark.parametrize("name", MISSES)
def test_explanations_say_what_solve_says(name: str) -> None:
    hold_explanation(mw.load(name, mw.Spec), solved(name), name)


def hold_explanation(spec: mw.Spec, outcome: Outcome, name: str) -> None:
    """Hold what an explanation says against the outcome that `solve` found."""
    answer = mw.explain(spec)
    texts = told(answer, _page(spec, answer), name)
    for surface, text in texts.items():
        assert ("No plan fits." in text) == (outcome.best is None), surface
        if outcome.best is not None:
            assert answer.best is not None
            assert answer.best.best == outcome.best
            assert seconds_text(outcome.best.step_s) in text, surface
        elif answer.conflict is not None:
            names = [rule.rule for rule in answer.conflict.rules]
            assert all(name in text for name in names), surface
        if answer.repairs and outcome.best is None:
            first = answer.repairs[0].sentence
            assert unwrapped(first) in unwrapped(text), surface


SERVED = sorted(
    path.stem for path in (Path(__file__).parents[2] / "specs").glob("serve-*.yaml")
)


@pytest.mark.parametrize("name", gate(SERVED[1:3], everything=SERVED))
def test_answers_of_serving_agree(name: str) -> None:
    hold_serving(mw.load(name, mw.ServingSpec), name)


@settings(max_examples=gate(3, everything=100), deadline=None)
@given(served_data())
def test_answers_of_random_serving_agree(data: dict[str, Any]) -> None:
    hold_serving(mw.load(data, mw.ServingSpec), "spec.yaml")


def hold_serving(spec: mw.ServingSpec, name: str) -> None:
    """Hold what surfaces say of a deployment against its numbers."""
    outcome = mw.solve(spec)
    assert isinstance(outcome, mw.ServingOutcome)
    page = data_of(mw.html_report(spec, outcome))
    texts = told(outcome, page, name)
    best = outcome.best
    for surface, text in texts.items():
        assert ("No plan fits." in text) == (outcome.status == "infeasible"), surface
        if best is None:
            continue
        assert seconds_text(best.ttft_s) in text, surface
        assert seconds_text(best.tpot_s) in text, surface
        assert f"{best.tokens_per_s:,.0f}" in text, surface


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
    run, text = solved(name).run, whole_text(solved(name))
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
    names = {one["why"]: one["stepS"] for one in page["near"]}
    assert names[RECOMMENDED] == pytest.approx(outcome.best.step_s, rel=1e-4)
    if outcome.fastest is not None:
        assert names[FASTEST] == pytest.approx(outcome.fastest.step_s, rel=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_other_risks_are_compared_with_the_recommended_plan(name: str) -> None:
    outcome = solved(name)
    asked = mw.load(name, mw.Spec).limits
    if outcome.best is None or outcome.optimum is None:
        return
    least_s = outcome.optimum.step_s * (1 - 1e-9)
    for choice, claim in zip(outcome.safety, safety_claims(outcome), strict=True):
        if choice.step_s is not None and choice.oom_risk < asked.risk:
            assert choice.step_s >= least_s
        if choice.step_s is not None and choice.oom_risk > asked.risk:
            assert choice.step_s <= outcome.best.step_s * (1 + 1e-9)
            assert "takes +" not in claim
        page = json.dumps(page_of(name))
        assert json.dumps(claim)[1:-1] in page
        assert claim in whole_text(outcome)


@pytest.mark.parametrize("name", gate(SPECS[::4], everything=SPECS))
def test_another_risk_has_the_plan_of_a_spec_that_asks_for_it(name: str) -> None:
    outcome, spec = solved(name), mw.load(name, mw.Spec)
    for choice in outcome.safety:
        other = spec.having("limits", oom_risk=choice.oom_risk)
        best = mw.solve(other, by_kind=False, safety=False).best
        assert (best is None) == (choice.step_s is None)
        if best is None or outcome.best is None:
            continue
        told = best
        if choice.oom_risk > spec.limits.risk and best.step_s >= outcome.best.step_s:
            told = outcome.best
        assert (choice.plan, choice.step_s) == (told.plan, told.step_s)


@pytest.mark.parametrize("name", SPECS)
def test_the_first_near_plan_is_the_fastest(name: str) -> None:
    outcome = solved(name)
    if outcome.near is None:
        return
    assert outcome.optimum is not None
    assert outcome.near.plans[0].step_s == outcome.optimum.step_s
    assert outcome.near.plans[0].plan == str(outcome.optimum.plan)
    assert all(decision.values[0].loss == 0 for decision in outcome.near.decisions)


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
    assert outcome.simplicity is not None
    slower = f"{outcome.simplicity.loss:.2%} slower than {FASTEST}"
    assert f"{RECOMMENDED}, {slower}; rank" in text


def test_an_open_answer_claims_no_more_than_its_choice() -> None:
    outcome = mw.solve(mw.load(OPEN))
    assert isinstance(outcome, Outcome)
    assert outcome.open is not None
    assert outcome.certificate is not None
    claim = proof_claim(outcome)
    assert " of this choice" in claim
    assert claim in whole_text(outcome)
    gap = 0.3
    known = outcome.certificate.model_copy(update={"gap": gap, "left_open": "Open."})
    undecided = outcome.model_copy(update={"status": "feasible", "certificate": known})
    told = proof_claim(undecided)
    assert "a choice that was left open may be 30.00% better" in told
    assert "(gap 0.00%)" in told
    assert "(gap 30" not in whole_text(undecided)


def test_a_miss_that_is_no_plan_of_the_spec_is_not_drawn() -> None:
    level = {"name": "pcie", "size": 3, "gb_s": 10, "latency_us": 1}
    data = {
        "model": "gpt-1.3b",
        "cluster": {"topology": {"gpu": "rtx-4090", "levels": [level]}},
        "training": {"seq_len": 512, "global_batch": 4},
        "pins": {"cp": 1, "tp": 1, "pp": 1},
    }
    spec = mw.load(data, mw.Spec)
    outcome = mw.solve(spec, by_kind=False)
    assert outcome.near_miss is not None
    assert "batch" in [rule.rule for rule in outcome.near_miss.broken_rules]
    page = _page(spec, outcome)
    assert page["plans"] == []
    hold(outcome, page, "spec.yaml")
