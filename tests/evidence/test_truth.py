"""The board of accuracy: what counts as refused, and when a figure has fallen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from benchmarks import truth
from benchmarks.bands import by_kind, errors_of, held
from benchmarks.runs_of import TAKEN_FROM
from benchmarks.truth import Board, Judged

from meshwright.evidence.price import Priced
from meshwright.evidence.score import score
from tests.evidence.test_runs import priced

ROOT = Path(__file__).parents[2]


def judged(step_s: float, probability: float, **measured: object) -> Judged:
    one = priced(measured={"step_time_s": 1.0, **measured})
    return Judged(one, step_s, probability)


def test_a_board_counts_errors_and_wrong_answers() -> None:
    """|ln 1.1|, |ln 0.9| and |ln 1.3|; of two that ran one was refused."""
    failed = Judged(priced(measured={"fits": False}), 1.0, 0.7)
    rows = [judged(1.1, 0.9), judged(0.9, 0.4), judged(1.3, 0.8), failed]
    cells = Board("ours", 5, rows).cells()
    assert cells[:3] == ("ours", "4/5", "3")
    assert cells[3].partition("/")[0] == f"{math.log(1 / 0.9):.1%}"
    assert cells[4] == "+10.0%"
    assert cells[-2:] == ("1/3", "1/1")
    figures = Board("ours", 5, rows).figures()
    assert figures["unpriced"][0] == pytest.approx(0.2)
    assert figures["refused"][0] == pytest.approx(1 / 3)


def test_every_source_counts_alike_in_the_errors_of_a_kind_of_model() -> None:
    """Of one source's 18 runs and another's two, the latter are half."""
    of_many = [(replaced("many"), error) for error in [0.1] * 18]
    of_few = [(replaced("few"), -0.4), (replaced("few"), 0.5)]
    kinds = by_kind([*of_many, *of_few])
    dense, experts = errors_of({False: kinds[False], True: kinds[False]})
    assert (dense.rows, dense.sources, dense.has_experts) == (20, 2, False)
    assert (dense.median, dense.p90, experts.has_experts) == (0.1, 0.5, True)
    assert dense.mape == pytest.approx(
        (math.expm1(0.1) + (math.expm1(0.4) + math.expm1(0.5)) / 2) / 2, rel=1e-3
    )
    assert kinds[True] == {}


def test_a_band_is_judged_by_sources_that_did_not_make_it() -> None:
    """All of the second's runs lie within the first's band, none the other way."""
    runs, of_a_source = held({"wide": [0.4, 0.5, 0.3], "narrow": [0.1]})
    assert runs == pytest.approx(1 / 4)
    assert of_a_source == pytest.approx(1 / 2)


def test_sources_that_gave_a_rate_are_no_unseen_ones() -> None:
    gave = TAKEN_FROM["rate"][0]
    assert by_kind([(replaced(gave), 0.1)]) == {False: {}, True: {}}


def replaced(source: str) -> Priced:
    one = priced(measured={"step_time_s": 1.0})
    return replace(one, run=one.run.model_copy(update={"source_id": source}))


def test_runs_are_counted_by_what_was_stated_of_them() -> None:
    """A probability of 1 is in the last range, one at an end in the range above it."""
    failed = Judged(priced(measured={"fits": False}), 1.0, 0.95)
    nobody_knows = Judged(priced(measured={"peak_memory_gb": 5.0}), 1.0, 0.95)
    rows = [judged(1.0, 1.0), judged(1.0, 0.96), failed, nobody_knows]
    told = {cells[0]: cells[1:] for cells in truth.fits(rows)}
    assert told["99% to 100%"] == ("1", "1", "0")
    assert told["95% to 99%"] == ("2", "1", "1")
    assert sum(int(runs) for runs, *_ in told.values()) == 3


def test_a_figure_may_fall_by_no_more_than_its_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(truth, "FIGURES", tmp_path / "truth.yaml")
    recorded = {"seen": {"time median": [0.10, 0.01], "refused": [0.02, 0.01]}}
    truth.FIGURES.write_text(yaml.safe_dump(recorded))
    same = {"seen": {"time median": (0.109, 0.01), "refused": (0.0, 0.01)}}
    assert truth.check(same) == 0
    worse = {"seen": {"time median": (0.12, 0.01), "refused": (0.02, 0.01)}}
    assert truth.check(worse) == 1
    assert "time median: 10.0% -> 12.0%  WORSE" in capsys.readouterr().out


def test_the_document_has_the_places_of_both_tables() -> None:
    text = truth.DOCUMENT.read_text(encoding="utf-8")
    for name in ("seen", "new"):
        assert text.count(f"<!-- {name} -->") == 1


def test_plans_that_are_predicted_alike_are_ranked_as_one() -> None:
    """Two runs of one plan, and two others: of three pairs all are the right way."""
    base = priced()
    times = [(1.0, 1.0), (1.0, 1.4), (2.0, 2.0), (3.0, 3.0)]
    rows = [
        replace(
            base,
            step_s=predicted,
            run=base.run.model_copy(
                update={
                    "measured": base.run.measured.model_copy(
                        update={"step_time_s": measured}
                    )
                }
            ),
        )
        for predicted, measured in times
    ]
    found = score(rows).ranking
    assert found is not None
    assert found.kendall_tau_mean == 1
    assert score(rows[:3]).ranking is None
