"""Answers on one screen: explanations, serving, misses, and searches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import meshwright as mw
from meshwright.deadline import Deadline
from meshwright.explanations.explain import Explainer
from meshwright.explanations.repairs import repairs
from meshwright.planner.options import Options
from meshwright.report.alternatives import lever_lines
from meshwright.report.screen import COLUMNS, LINES, Answer, screen_sections
from meshwright.report.solve import alike, spans
from meshwright.report.tables import Lines, Table, sections_as_text
from meshwright.results.outcome_parts import Repair
from tests.helpers.command import ran, run, unwrapped

ROOMY, FULL = "gpt2-xl-2xh100-nvlink", "llama3-8b-2x4090-pcie"
SERVED = "serve-llama3-8b-1xa100"
NOT_SERVED = "serve-llama3-70b-2x4090-pcie"


@cache
def answer(name: str) -> Answer:
    kind, _, spec = name.partition(" ")
    loaded = mw.load(spec)
    return mw.solve(loaded) if kind == "solve" else mw.explain(loaded)


@pytest.mark.parametrize("width", [COLUMNS, 120])
@pytest.mark.parametrize(
    "name",
    [
        f"explain {ROOMY}",
        f"explain {FULL}",
        f"solve {FULL}",
        f"solve {SERVED}",
        f"explain {SERVED}",
        f"solve {NOT_SERVED}",
        f"explain {NOT_SERVED}",
    ],
)
def test_an_answer_fits_on_a_screen(name: str, width: int) -> None:
    sections = screen_sections(answer(name), "my.yaml", width)
    lines = sections_as_text(sections, width).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= width
    assert lines[-1] == f"  All of it: meshwright {name.split()[0]} my.yaml --verbose"


def test_a_plan_that_pays_for_memory_is_told_what_frees_it() -> None:
    """LoRA of 8B on two RTX 4090 has 8 GiB of logits: inputs of layers leave, or else
    weights, where a pin keeps inputs.
    """
    asked = "--model qwen3-8b --gpu rtx-4090 --count 2 --framework fsdp --lora 16"
    told = unwrapped(run("solve", *asked.split()).stdout)
    assert "recompute full-cpu" in told
    assert "GiB on the fullest GPU, the same numbers: loss_chunks: 1 -> 8" in told
    assert "; explain prices the best plan with it" in told
    told = unwrapped(run("solve", *asked.split(), "--pin", "recompute=full").stdout)
    assert "parameters offloaded" in told
    assert "GiB on the fullest GPU, the same numbers: loss_chunks: 1 -> 8" in told
    assert "on the fullest GPU" not in unwrapped(run("solve", ROOMY).stdout)


@pytest.mark.parametrize("verb", ["solve", "explain"])
def test_a_miss_names_the_conflict_and_the_cheapest_repair(verb: str) -> None:
    told = unwrapped(run(verb, FULL).stdout)
    found = mw.Explanation.from_json(run("explain", FULL, "--format", "json").stdout)
    assert found.conflict is not None
    assert all(unwrapped(str(rule)) in told for rule in found.conflict.rules)
    assert f"Change {unwrapped(found.repairs[0].sentence)}." in told


def test_a_solve_that_misses_has_what_an_explanation_has() -> None:
    outcome, explained = answer(f"solve {FULL}"), answer(f"explain {FULL}")
    assert isinstance(outcome, mw.Outcome)
    assert isinstance(explained, mw.Explanation)
    assert explained.conflict is not None
    assert outcome.repair is not None
    assert outcome.conflict == explained.conflict
    assert outcome.repair == explained.repairs[0]
    assert mw.Outcome.from_json(outcome.to_json()).repair == outcome.repair
    told = unwrapped(str(outcome))
    assert unwrapped(outcome.repair.sentence) in told
    assert all(unwrapped(str(rule)) in told for rule in explained.conflict.rules)
    command = "  Mend it: meshwright explain my.yaml"
    sections = screen_sections(outcome, "my.yaml")
    assert command in sections_as_text(sections, COLUMNS).splitlines()


def test_a_miss_has_no_repair_where_none_was_asked_for_or_the_time_was_up() -> None:
    spec = mw.load(FULL, mw.Spec)
    alone = mw.solve(spec, repair=False)
    assert alone.status == "infeasible"
    assert (alone.conflict, alone.repair) == (None, None)
    explainer = Explainer(Options(), Deadline(0.0))
    assert explainer.mended(spec, alone) == alone
    assert "Because of" not in str(alone)


def test_no_repair_is_told_where_the_time_was_up_in_the_last_solve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A solve that ends early may miss the plan that mends the spec best."""
    spec = mw.load(FULL, mw.Spec)
    alone = mw.solve(spec, repair=False)
    deadline = Deadline()

    def in_time(*asked: Any) -> Iterator[Repair]:
        yield from repairs(*asked)
        deadline.interrupt.is_asked = True

    monkeypatch.setattr("meshwright.explanations.explain.repairs", in_time)
    assert Explainer(Options(), deadline).mended(spec, alone) == alone


def test_the_recommended_plan_is_not_told_twice_where_it_is_judged() -> None:
    """Nor its distance to itself; how busy a link is stands as a share of the step."""
    recommended = mw.solve(mw.load(ROOMY, mw.Spec)).best
    assert recommended is not None
    told = unwrapped(run("explain", ROOMY, "--plan", recommended.plan.brief).stdout)
    assert "the recommended plan, which is the fastest plan; rank 1 of 221, " in told
    assert "ahead of 99%" in told  # not of itself
    assert told.count(" s a step") == 1
    assert "Distance to the fastest plan" not in told
    assert " of 1 of the step" not in told
    assert "% of at most 100% (" in told


def test_switches_stand_in_the_order_of_what_they_gain() -> None:
    """They come by what they gain and free together, of which a screen has the gain."""
    found = mw.explain(mw.load(ROOMY, mw.Spec)).levers
    shares = [0.02 + 0.01 * place for place in range(len(found))]
    assert len(shares) > 1
    told = tuple(
        lever.model_copy(update={"gain": share})
        for lever, share in zip(found, shares, strict=True)
    )
    (section,) = lever_lines(told, len(told))
    assert isinstance(section, Lines)
    gains = [float(line.partition("%")[0]) for line in section.lines]
    assert gains == sorted(gains, reverse=True)


def test_no_switch_frees_less_than_nothing() -> None:
    told = run("solve", ROOMY, "--verbose").stdout
    assert "+0.0 GiB" in told
    assert "-0.0 GiB" not in told


def test_verbose_prints_what_the_screen_leaves_out() -> None:
    screen, whole = ran("solve", ROOMY).stdout, ran("solve", ROOMY, "-v").stdout
    for title in ("How safe", "Most loaded link", "Certificate"):
        assert title not in screen
        assert title in whole


def test_commands_are_named_only_where_they_repeat_the_question() -> None:
    plain = run("solve", ROOMY, "--no-by-kind").stdout
    pinned = run("solve", ROOMY, "--no-by-kind", "--pin", "pp=2").stdout
    assert f"Why: meshwright explain {ROOMY}\n" in plain
    assert "meshwright" not in pinned
    assert pinned.endswith("All of it: add --verbose\n")


def test_stages_that_are_alike_share_a_row() -> None:
    cells = [("a",), ("b",), ("b",), ("c",), ("b",)]
    rows = [spans(stages) for stages in alike(cells).values()]
    assert rows == ["0", "1-2, 4", "3"]


def test_a_search_lists_its_cases() -> None:
    from meshwright.sweeps.export import search_sections

    sweep = {"base": ROOMY, "sweep": {"limits.memory_gib": [1, 60, 70]}}
    text = sections_as_text(search_sections(mw.search(sweep, workers=1)), COLUMNS)
    table = text[text.index("Cases by") :]
    assert all(f"memory_gib={gib}" in table for gib in (1, 60, 70))
    assert "none fits: memory" in table


@pytest.mark.parametrize("width", range(76, 120))
def test_a_table_that_fits_loses_no_letter(width: int) -> None:
    row = ("gradients: default -> bf16", "-15.0 GiB", "other rounding", "--in-bf16" * 3)
    table = Table("", ("switch", "fullest GPU", "the numbers", "how"), (row,))
    told = sections_as_text([table], width).split()
    assert {*" ".join((*table.heading, *row)).split()} <= {*told}
    assert max(map(len, sections_as_text([table], width).splitlines())) <= width
