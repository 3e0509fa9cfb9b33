"""Fronts against brute force: over rows, and over every plan of small specs.

The gate draws fewer random specs than `--all`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.errors import SpecError
from meshwright.explanations.decisions import with_memory
from meshwright.loading.load import load_spec
from meshwright.plans.skeletons import Skeletons
from meshwright.report.tables import Table
from meshwright.spec.base import MOST_RISK
from meshwright.spec.spec import Spec
from meshwright.sweeps.cases import Case, Row, SolveSettings
from meshwright.sweeps.export import search_sections
from meshwright.sweeps.run_search import TradeOff
from meshwright.sweeps.store import Store
from meshwright.sweeps.summary import (
    SearchResult,
    Solve,
    best_of_groups,
    by_gpus,
    by_memory,
    by_risk,
    by_techniques,
    front,
    summarise,
    trade_off_search,
    undominated,
)
from meshwright.sweeps.sweep import Search
from meshwright.sweeps.worker import solve_case
from tests.helpers.extent import gate
from tests.helpers.oracle import every_plan
from tests.helpers.searches import cases, changed
from tests.helpers.strategies import specs

SOME = settings(
    max_examples=gate(4, everything=15),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

COSTS = st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30)

ROUNDING = 1e-6
"""Of times in ticks and of memory in chunks, at most, relative."""

Point = tuple[float, float]


def row(number: int, **metrics: float | None) -> Row:
    axes = {"model": "ab"[number % 2]}
    return Row(
        key=str(number),
        name="",
        axes=axes,
        status="optimal",
        **metrics,
    )


@given(COSTS)
def test_undominated_is_what_nothing_dominates(costs: list[tuple[int, ...]]) -> None:
    expected = {
        one
        for one in range(len(costs))
        if not any(
            all(a <= b for a, b in zip(other, costs[one], strict=True))
            and other != costs[one]
            for other in costs
        )
    }
    assert set(undominated(np.array(costs, dtype=float)).tolist()) == expected


@given(COSTS)
def test_front_of_rows_knows_which_way_is_better(costs: list[tuple[int, ...]]) -> None:
    names = ("step_s", "tokens_per_s", "gpus")
    rows = [
        row(i, step_s=a, tokens_per_s=-b, gpus=c + 1)
        for i, (a, b, c) in enumerate(costs)
    ]
    keys = {one.key for one in front(rows, names)}
    expected = undominated(np.array(costs, dtype=float)).tolist()
    assert keys == {str(one) for one in expected}


def test_rows_that_lack_a_metric_are_on_no_front() -> None:
    rows = [row(0, step_s=2.0, gpus=2), row(1, step_s=1.0)]
    assert [one.key for one in front(rows, ("step_s", "gpus"))] == ["0"]
    assert front(rows, ("step_s", "mfu")) == []


def test_groups_have_their_own_best_and_front() -> None:
    rows = [row(i, step_s=float(9 - i), gpus=i + 1) for i in range(5)]
    assert {n: r.key for n, r in best_of_groups(rows, "step_s", "model").items()} == {
        "a": "4",
        "b": "3",
    }
    found = summarise("", rows, "gpus", "model", ("step_s", "gpus"))
    assert [one.key for one in found.fronts["a"]] == ["4", "2", "0"]
    assert [one.key for one in found.fronts["b"]] == ["3", "1"]
    assert found.best["a"].key == "0"


def test_cases_are_listed_by_the_step_that_is_shown_beside_them() -> None:
    """A case that is doubted stands behind one that takes longer, and says why."""
    steps = [(9.0, 9.9), (9.5, 9.5), (10.0, 10.0)]
    rows = [row(i, step_s=s, doubted_s=d) for i, (s, d) in enumerate(steps)]
    best, cases, *_ = tables_of(summarise("", rows, "step_s"))
    assert best.title == "Best step_s at the doubted step"
    assert cases.title == "Cases by step_s at the doubted step"
    place = cases.heading.index("doubted_s")
    assert [one[place] for one in cases.rows] == ["9.50 s", "9.90 s", "10.00 s"]
    certain = [row(i, step_s=9.0 + i, doubted_s=9.0 + i) for i in range(2)]
    sure = summarise("", certain, "step_s")
    assert "doubted_s" not in tables_of(sure)[1].heading


def tables_of(found: SearchResult) -> list[Table]:
    return [one for one in search_sections(found) if isinstance(one, Table)]


def here(case: Case) -> Row:
    return solve_case("", case, SolveSettings())


def solved(
    trace: Callable[[Spec, Solve], Iterator[Row]], spec: Spec, metric: str
) -> list[Point]:
    """Return the front of a spec by solving it again and again."""
    points = front(list(trace(spec, here)), ("step_s", metric))
    assert all(point.certificate and point.certificate.gap == 0 for point in points)
    return [
        (float(point.step_s or 0), float(getattr(point, metric))) for point in points
    ]


def brute(spec: Spec, other: Callable[[Skeletons], float] | None) -> list[Point]:
    """Return the same from every plan: against what `other` says, or peak GiB."""
    found: list[Point] = []
    for one, step_s, peak_gib in every_plan(spec):
        cost = peak_gib if other is None else np.full(len(step_s), other(one))
        found += zip(step_s.tolist(), cost.tolist(), strict=True)
    costs = np.array(sorted(set(found)) or np.zeros((0, 2)))
    return [tuple(costs[each]) for each in undominated(costs)]


def check_equal(this: Sequence[Point], every: Sequence[Point]) -> None:
    """Check that two fronts are the same staircase, but for rounding."""

    def least_s(points: Sequence[Point], cost: float) -> float:
        most = cost * (1 + ROUNDING) + ROUNDING
        return min((s for s, c in points if c <= most), default=np.inf)

    for _, cost in (*this, *every):
        first, second = least_s(this, cost), least_s(every, cost)
        assert first == pytest.approx(second, rel=ROUNDING, abs=1e-7)


def ways_of(one: Skeletons) -> float:
    above_one = ("tp", "pp", "vpp", "cp", "ep", "zero")
    above_none = ("schedule", "recompute", "offload")
    used = sum(int(getattr(one, name)[0] > 1) for name in above_one)
    return float(used + sum(int(getattr(one, name)[0] > 0) for name in above_none))


@pytest.mark.slow
@SOME
@given(specs(most_layers=3))
def test_memory_fronts_are_those_of_every_plan(spec: Spec) -> None:
    assume(spec.limits.max_link_utilisation is None)
    check_equal(solved(by_memory, spec, "peak_gib"), brute(spec, None))


@SOME
@given(specs(most_layers=3))
def test_fronts_of_simplicity_are_those_of_every_plan(spec: Spec) -> None:
    assume(spec.limits.max_link_utilisation is None)
    check_equal(solved(by_techniques, spec, "ways"), brute(spec, ways_of))


@pytest.mark.slow
def test_tight_spec_trades_time_for_memory_and_simplicity(tmp_path: Path) -> None:
    text = changed("d_model: 256", "d_model: 512", changed("[1, 2]", "[2]"))
    spec = cases(tmp_path, text)[2].spec
    assert spec is not None
    for trace, metric, other in (
        (by_memory, "peak_gib", None),
        (by_techniques, "ways", ways_of),
    ):
        points = solved(trace, spec, metric)
        assert len(points) > 2, metric
        check_equal(points, brute(spec, other))


def test_ways_that_are_pinned_in_stay(tmp_path: Path) -> None:
    text = changed("[1, 2]", "[2]") + "  pins.tp: [2]\n  pins.recompute: [[full]]\n"
    spec = cases(tmp_path, text)[0].spec
    assert spec is not None
    rows = list(by_techniques(spec, here))
    assert rows
    for one in rows:
        assert one.plan is not None
        assert (one.plan.tp, one.plan.recompute) == (2, "full")
    # The first has every technique that it likes.
    assert rows[0].axes == {"without": "nothing"}


def test_gpus_are_tried_from_one_copy_to_all(tmp_path: Path) -> None:
    spec = cases(tmp_path)[5].spec
    assert spec is not None
    counts = [case.spec.cluster.gpus for case in by_gpus(spec) if case.spec]
    assert counts == [2, 4]


def test_counts_that_a_spec_cannot_have_are_rows_that_say_so(tmp_path: Path) -> None:
    text = changed("[1, 2]", "[2]") + "  pins.mesh.dp_shard: [[2, 2]]\n"
    spec = cases(tmp_path, text)[0].spec
    assert spec is not None
    first, second = by_gpus(spec)
    assert first.spec is None
    assert "mesh" in first.error or "levels" in first.error
    assert second.spec == spec


def _note_age(seen: list[bool], _row: Row, is_old: bool) -> None:
    seen.append(is_old)


def test_front_of_risk_is_that_of_memory() -> None:
    """Step by step the same plans: what needs less memory is less likely to fail."""
    spec = load_spec("gpt2-xl-2x4090-pcie")
    by_chance = list(by_risk(spec, here))
    card_gib = spec.cluster.topology.gpu.memory_gib
    half_gib = spec.memory_spread.usable_gib(card_gib, MOST_RISK)
    memory = list(by_memory(with_memory(spec, half_gib), here))
    assert 2 < len(by_chance) <= len(memory)
    for one, other in zip(by_chance, memory, strict=False):
        assert (one.step_s, one.peak_gib) == (other.step_s, other.peak_gib)
        assert one.risk is not None
        assert one.peak_gib is not None
        assert one.risk == pytest.approx(1 - spec.fit_probability(one.peak_gib))
    risks = [each.risk or 0.0 for each in by_chance]
    assert risks == sorted(risks, reverse=True)
    assert len(set(risks)) == len(risks)


def test_trade_off_is_stored_and_resumed(tmp_path: Path) -> None:
    spec = cases(tmp_path)[5].spec
    assert spec is not None
    found, olds = [], []
    for _ in range(2):
        with Store(tmp_path / "trace.sqlite") as store:
            seen: list[bool] = []
            trade_off = TradeOff(
                SolveSettings(),
                store,
                True,
                partial(_note_age, seen),
            )
            trade_off.follow(spec, "ways")
            found.append(trade_off.rows)
            olds.append(seen)
    assert found[0] == found[1]
    assert not any(olds[0])
    assert all(olds[1])


def test_only_one_spec_has_a_front_within(tmp_path: Path) -> None:
    every = cases(tmp_path)
    with pytest.raises(SpecError, match="--within: 6 cases; expected one spec"):
        trade_off_search(Search("", every), "ways")
    with pytest.raises(SpecError, match="--within: 'mfu': expected one of peak_gib"):
        trade_off_search(Search("", every[:1]), "mfu")
    assert trade_off_search(Search("", every[:1]), "ways").fields.front == (
        "step_s",
        "ways",
    )
