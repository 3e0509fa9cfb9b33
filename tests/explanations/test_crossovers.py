"""Where one plan starts to beat another, and the numbers that decide it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate, combinations, groupby, pairwise
from random import Random

import pytest

import meshwright as mw
from meshwright.explanations.compare import (
    CLOSE,
    Order,
    SolvedPlans,
    compare,
    find_crossovers,
    gap_to_best,
    head_to_heads,
    kind_pins,
    part_differences,
    with_crossovers,
)
from meshwright.loading.plan_text import read_plan
from meshwright.loading.vary import vary
from meshwright.planner.solve import solve
from meshwright.report.compare import compare_sections
from meshwright.report.tables import Lines
from meshwright.results.comparison import Comparison, Crossover, HeadToHead
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec

SPEC = "llama3-8b-2xa100-pcie"
LINK = "topology.levels[0].gb_s=8:900"

Curves = Mapping[str, tuple[float, float]]


@functools.cache
def solved() -> Outcome:
    return solve(mw.load(SPEC, mw.Spec))


def curved(
    curves: Curves,
    at_least: Mapping[str, float] | None = None,
    gaps: Mapping[str, tuple[float, float]] | None = None,
) -> SolvedPlans:
    """Return plans whose steps take a + b / bandwidth.

    Some need so much of it, and some fit at no bandwidth in a gap.
    """
    micro_batches = {1 + i: name for i, name in enumerate(curves)}

    def answer(spec: Spec) -> Outcome:
        assert spec.pins.micro_batch is not None
        assert spec.pins.micro_batch.single is not None
        name = micro_batches[spec.pins.micro_batch.single]
        gb_s = spec.cluster.levels[0].gb_s
        low, high = (gaps or {}).get(name, (0.0, 0.0))
        if gb_s < (at_least or {}).get(name, 0.0) or low < gb_s < high:
            return solved().model_copy(update={"best": None})
        plan = solved().best
        assert plan is not None
        parts = {"compute": curves[name][0], "tp": curves[name][1] / gb_s}
        changed = {"step_s": sum(parts.values()), "time_parts": parts}
        return solved().model_copy(update={"best": plan.model_copy(update=changed)})

    pins = ((n, read_plan(f"micro_batch={i}")) for i, n in micro_batches.items())
    return SolvedPlans(vary(SPEC, LINK).at, list(pins), answer)


def counted(steps: SolvedPlans, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often a plan is solved anew at a value, by its name, as it is done."""
    found, best = Counter[str](), SolvedPlans.best
    known = set[tuple[float, str]]()

    def noted(self: SolvedPlans, value: float, name: str) -> PricedPlan | None:
        if (value, name) not in known:
            known.add((value, name))
            found[name] += 1
        return best(self, value, name)

    monkeypatch.setattr(SolvedPlans, "best", noted)
    return found


def test_a_turn_is_looked_for_just_below_and_above_where_it_is_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five values of the range, then two: times are linear in 1 / bandwidth.

    Z is slower throughout, and is not solved for at the turn of the others.
    """
    steps = curved({"X": (10, 100), "Y": (12, 40), "Z": (30, 500)})
    solves = counted(steps, monkeypatch)
    found = find_crossovers(steps, 8, 900)
    assert_turns(found, [30])
    assert (found[0].before, found[0].after) == (("Y", "X", "Z"), ("X", "Y", "Z"))
    assert solves == {"X": 7, "Y": 7, "Z": 5}


def test_values_beyond_the_range_are_no_part_of_it() -> None:
    """X and Y meet at 30: not within 40 to 900, nor within 8 to 20."""
    for low, high, known in ((40, 900, 10.0), (8, 20, 100.0)):
        steps = curved({"X": (10, 100), "Y": (12, 40)})
        steps.known_values = [known, float(low), float(high)]
        assert find_crossovers(steps, low, high) == []


@pytest.mark.parametrize(("at", "found_at"), [(900, 900), (8, 8)])
def test_plans_that_are_equally_fast_at_an_end_turn_there(
    at: int, found_at: int
) -> None:
    """Y takes as long as X there alone; of equals the first that was given is first."""
    names = ("Y", "X") if at == 900 else ("X", "Y")
    step_s = {"X": (10.0, 0.0), "Y": (9.0, float(at))}
    steps = curved({name: step_s[name] for name in names})
    found = find_crossovers(steps, 8, 900)
    assert_turns(found, [found_at])
    assert (found[0].before, found[0].after) == (("X", "Y"), ("Y", "X"))


def test_plans_that_start_to_fit_together_turn_together() -> None:
    fits = {"X": 100.0, "Y": 100.0}
    steps = curved({"X": (10, 1), "Y": (11, 1), "Z": (20, 1)}, at_least=fits)
    found = find_crossovers(steps, 8, 900)
    assert_turns(found, [100])
    assert (found[0].before, found[0].after) == (("Z",), ("X", "Y", "Z"))


def test_a_plan_that_starts_to_fit_beside_a_turn_is_told_apart() -> None:
    steps = curved({"X": (10, 100), "Y": (12, 40), "Z": (1, 1)}, at_least={"Z": 28.0})
    found = find_crossovers(steps, 8, 900)
    assert_turns(found, [28, 30])
    orders = [found[0].before, *(flip.after for flip in found)]
    assert orders == [("Y", "X"), ("Z", "Y", "X"), ("Z", "X", "Y")]


def assert_turns(found: list[Crossover], at: list[float]) -> None:
    assert len(found) == len(at)
    for flip, where in zip(found, at, strict=True):
        assert where <= flip.at <= where * CLOSE


def test_turns_close_to_each_other_are_told_apart() -> None:
    """a + b / v meet where b1 - b2 = (a2 - a1) v: at 30, 92 / 3 and 32."""
    steps = curved({"X": (10, 100), "Y": (12, 40), "Z": (13, 8)})
    found = find_crossovers(steps, 8, 900)
    assert_turns(found, [30, 92 / 3, 32])
    orders = [found[0].before, *(flip.after for flip in found)]
    assert orders == [
        ("Z", "Y", "X"), ("Z", "X", "Y"), ("X", "Z", "Y"), ("X", "Y", "Z")
    ]  # fmt: skip
    assert [flip.before for flip in found[1:]] == orders[1:-1]


def true_order(
    curves: Curves,
    needs: Mapping[str, float],
    gaps: Mapping[str, tuple[float, float]],
    gb_s: float,
) -> Order:
    """Return the plans that fit at a bandwidth, the fastest first."""
    step_s = {name: a + b / gb_s for name, (a, b) in curves.items()}
    fitting = [name for name in step_s if gb_s >= needs.get(name, 0.0)]
    gap = {name: gaps.get(name, (0.0, 0.0)) for name in fitting}
    fitting = [n for n in fitting if not gap[n][0] < gb_s < gap[n][1]]
    return tuple(sorted(fitting, key=lambda name: step_s[name]))


def assert_pairs_are_told(
    steps: SolvedPlans,
    found: list[Crossover],
    order: Callable[[float], Order],
    value: float | None,
) -> None:
    """Hold what is told of pairs to the orders at all turns, pair by pair.

    A value beyond the range counts as the end that is nearest to it, as does none.
    """
    ends = [8.0, *(flip.at for flip in found), 900.0]
    nearest = {None: 8.0, 4.0: 8.0, 950.0: 900.0}.get(value, value)
    assert nearest is not None
    told = head_to_heads(steps, found, 8, 900, value)
    fastest = order(nearest)[:1]
    pairs = {frozenset((one.winner, one.loser)): one for one in told}
    assert len(pairs) == len(told)
    for pair in map(frozenset, combinations(steps.names, 2)):
        winners = ["".join([n for n in order(at) if n in pair][:1]) for at in ends[:-1]]
        runs = [(winner, len([*same])) for winner, same in groupby(winners)]
        is_told = len(runs) > 1 or (fastest and fastest[0] in pair)
        assert (pair in pairs) == bool(is_told)
        if not is_told:
            continue
        starts = [*accumulate((count for _, count in runs), initial=0)]
        result = pairs[pair]
        assert [(span.low, span.high, span.winner) for span in result.spans] == [
            (ends[low], ends[high], winner)
            for (low, high), (winner, _) in zip(pairwise(starts), runs, strict=True)
        ]
        assert result.winner == next(w for w in reversed(winners) if w)
        assert result.at == (nearest if len(runs) == 1 else result.spans[0].high)
        assert bool(result.sides) == ({*order(result.at)} >= pair)


@pytest.mark.parametrize(
    ("has_gaps", "turns", "solves"), [(False, 89, 1577), (True, 184, 2739)]
)
def test_every_turn_of_random_plans_is_found_with_few_solves(
    has_gaps: bool, turns: int, solves: int
) -> None:
    """The orders before and at each turn are those of the times and needs drawn.

    Where plans fit on both sides of a gap, two turns may be within a percent.
    """
    told = asked = 0
    for seed in range(60):
        draw = Random(seed)
        names = "WXYZ"[: draw.choice([2, 3, 3, 4])]
        curves = {n: (draw.uniform(1, 20), draw.uniform(1, 400)) for n in names}
        needs = {n: draw.uniform(10, 800) for n in names if draw.random() < 0.3}
        starts = {n: draw.uniform(10, 500) for n in names if has_gaps}
        gaps = {n: (low, low * draw.uniform(2, 90)) for n, low in starts.items()}
        order = partial(true_order, curves, needs, gaps)
        with pytest.MonkeyPatch.context() as patch:
            steps = curved(curves, at_least=needs, gaps=gaps)
            counts = counted(steps, patch)
            found = find_crossovers(steps, 8, 900)
        orders = [order(8), *(flip.after for flip in found)]
        assert [flip.before for flip in found] == orders[:-1]
        assert [order(flip.at) for flip in found] == orders[1:]
        before = [order(flip.at / CLOSE) for flip in found]
        assert has_gaps or before == orders[:-1]
        assert orders[-1] == order(900)
        told, asked = told + len(found), asked + counts.total()
        # Within the range a gap may lie between solved values.
        within = None if has_gaps else 60.0
        value = draw.choice([None, 4.0, 8.0, within, 950.0])
        assert_pairs_are_told(steps, found, order, value)
    assert (told, asked) == (turns, solves)


def test_steps_that_agree_to_nine_digits_are_equally_fast() -> None:
    """They keep the order in which they were given, and those without room are out."""
    curves = {"X": (10 + 1e-9, 0.0), "Y": (10.0, 0.0), "Z": (10 - 1e-7, 0.0)}
    steps = curved(curves | {"W": (1.0, 0.0)}, at_least={"W": 100.0})
    assert steps.order(50) == ("Z", "X", "Y")
    assert steps.order(50, {"Y", "X", "W"}) == ("X", "Y")
    assert steps.order(100) == ("W", "Z", "X", "Y")
    assert steps.order(100, ()) == ()


def test_each_plan_is_solved_for_once_at_a_value_and_a_known_one_never() -> None:
    asked = list[tuple[float, Pins]]()

    def noted(spec: Spec) -> Outcome:
        asked.append((spec.cluster.levels[0].gb_s, spec.pins))
        return solved()

    known = compare(mw.load(SPEC, mw.Spec), PLANS[:1], lambda _: solved())
    steps = SolvedPlans(vary(SPEC, LINK).at, PLANS[:2], noted)
    steps.add(20.0, known)
    for value in (20.0, 30.0, 20.0):
        assert steps.best(value, "tp=2") == solved().best
        assert steps.best(value, "pp=2") == solved().best
    assert steps.known_values == [20.0]
    assert [(value, pins.tp is None) for value, pins in asked] == [
        (20.0, True),
        (30.0, False),
        (30.0, True),
    ]


def test_a_side_pays_for_what_it_does_longer_the_longest_first() -> None:
    """By more than a billionth of its step, which is rounding."""
    plan = solved().best
    assert plan is not None
    parts_s = (
        {"compute": 3.0, "tp": 1.0, "bubble": 2.0, "zero": 5e-9},
        {"compute": 1.0, "tp": 2.0, "bubble": 1.0, "pp": 0.5, "dp": 7.0},
    )
    links = tuple(one.model_copy(update={"gb": 2.0}) for one in plan.all_links[:1])
    answers = [
        plan.model_copy(
            update={
                "time_parts": parts_,
                "step_s": sum(parts_.values()),
                "all_links": links,
            }
        )
        for parts_ in parts_s
    ]

    def answer(spec: Spec) -> Outcome:
        best = answers[spec.pins.pp is not None]
        return solved().model_copy(update={"best": best})

    steps = SolvedPlans(vary(SPEC, LINK).at, PLANS[:2], answer)
    (found,) = head_to_heads(steps, [], 8, 900, 20)
    winner, loser = found.sides
    assert (found.winner, found.loser) == (winner.name, loser.name) == ("tp=2", "pp=2")
    assert [*winner.pays_s.items()] == [("compute", 2.0), ("bubble", 1.0)]
    assert [*loser.pays_s.items()] == [("dp", 7.0), ("tp", 1.0), ("pp", 0.5)]
    assert (winner.step_s, loser.step_s) == (sum(parts_s[0].values()), 11.5)
    assert winner.sent_gb == loser.sent_gb == 2.0
    assert part_differences(*parts_s) == {
        "compute": 2.0, "tp": -1.0, "bubble": 1.0, "zero": 5e-9, "pp": -0.5, "dp": -7.0
    }  # fmt: skip
    gap = gap_to_best(answers[1], answers[0])
    assert gap.terms == {n: -s for n, s in part_differences(*parts_s).items()}
    assert gap.step_s == answers[1].step_s - answers[0].step_s


def test_a_plan_that_starts_to_fit_is_a_turn() -> None:
    steps = curved({"X": (10, 1), "Y": (11, 1)}, at_least={"X": 100})
    found = find_crossovers(steps, 8, 900)
    assert_turns(found, [100])
    assert (found[0].before, found[0].after) == (("Y",), ("X", "Y"))
    (result,) = head_to_heads(steps, found, 8, 900, 20)
    assert [span.winner for span in result.spans] == ["Y", "X"]


def test_plans_that_never_turn_have_a_rule_with_the_fastest() -> None:
    """At 20: 10.5, 11.5 and 12.5 s; the pair of both losers is not told."""
    steps = curved({"X": (10, 10), "Y": (11, 10), "Z": (12, 10)})
    assert find_crossovers(steps, 8, 900) == []
    told = head_to_heads(steps, [], 8, 900, 20)
    assert [(one.winner, one.loser) for one in told] == [("X", "Y"), ("X", "Z")]
    assert [one.at for one in told] == [20, 20]
    assert [one.sides[1].pays_s for one in told] == [{"compute": 1}, {"compute": 2}]
    assert [one.sides[1].step_s for one in told] == [11.5, 12.5]


def test_a_turn_of_two_plans_is_told_where_neither_is_the_fastest() -> None:
    steps = curved({"X": (1, 1), "Y": (10, 100), "Z": (12, 40)})
    told = head_to_heads(steps, find_crossovers(steps, 8, 900), 8, 900, 20)
    pairs = [(one.winner, one.loser, len(one.spans)) for one in told]
    assert pairs == [("X", "Y", 1), ("X", "Z", 1), ("Y", "Z", 2)]


@pytest.mark.parametrize("gapped", ["X", "Y"])
def test_plans_are_not_weighed_up_where_one_does_not_fit(gapped: str) -> None:
    """Y is faster where it fits, which it does not from 50 on, up to 400."""
    curves = {"X": (12.0, 40.0), "Y": (10.0, 40.0)}
    if gapped == "X":
        curves = {"X": (10.0, 40.0), "Y": (12.0, 40.0)}
    steps = curved(curves, gaps={gapped: (50, 400)})
    (found,) = head_to_heads(steps, find_crossovers(steps, 8, 900), 8, 900, 20)
    other = "X" if gapped == "Y" else "Y"
    assert [span.winner for span in found.spans] == [gapped, other, gapped]
    assert (found.winner, found.sides) == (gapped, ())
    assert 50 < found.at <= 50 * CLOSE


def test_without_a_value_of_the_spec_the_turn_is_weighed_up() -> None:
    steps = curved({"X": (10, 10), "Y": (1, 1)}, at_least={"Y": 30})
    (found,) = head_to_heads(steps, find_crossovers(steps, 8, 900), 8, 900, None)
    assert [span.winner for span in found.spans] == ["X", "Y"]
    assert found.spans[0].high == found.spans[1].low == found.at


def of_pair(comparison: Comparison, *names: str) -> HeadToHead:
    return next(r for r in comparison.rules if {r.winner, r.loser} == set(names))


PLANS = [(text, read_plan(text)) for text in ("tp=2", "pp=2", "dp=2")]


@functools.cache
def real() -> Comparison:
    spec = mw.load(SPEC, mw.Spec)
    return with_crossovers(compare(spec, PLANS, solve), vary(SPEC, LINK), PLANS, solve)


def test_numbers_of_a_rule_add_up() -> None:
    """What one side pays more, less what the other does, is how much slower it is."""
    assert real().rules
    for rule in real().rules:
        winner, loser = rule.sides
        paid = [sum(side.pays_s.values()) for side in (winner, loser)]
        slower_s = loser.step_s - winner.step_s
        assert paid[1] - paid[0] == pytest.approx(slower_s, abs=1e-6 * loser.step_s)
        assert slower_s >= 0
        if len(rule.spans) > 1:
            assert winner.step_s == pytest.approx(loser.step_s, rel=CLOSE - 1)


def test_a_wide_link_is_what_tensors_need() -> None:
    """Above its turn TP beats PP by exact solves, below it loses; so it is told."""
    found = of_pair(real(), "tp=2", "pp=2")
    assert (found.winner, found.loser) == ("tp=2", "pp=2")
    winner, loser = found.sides
    assert next(iter(winner.pays_s)) == "tp"
    assert "bubble" in loser.pays_s
    assert winner.sent_gb > 50 * loser.sent_gb > 0
    at = vary(SPEC, LINK).at
    above, below = (
        compare(at(v), PLANS[:2], solve) for v in (found.at, found.at / CLOSE)
    )
    assert [one.name for one in above.plans] == ["tp=2", "pp=2"]
    assert [one.name for one in below.plans] == ["pp=2", "tp=2"]


def lines(comparison: Comparison, title: str) -> tuple[str, ...]:
    sections = compare_sections(comparison)
    return next(
        s.lines for s in sections if isinstance(s, Lines) and s.title.startswith(title)
    )


def test_the_rule_is_told_in_words_with_its_numbers() -> None:
    found = of_pair(real(), "tp=2", "pp=2")
    told = lines(real(), "Which plan is faster where")
    first = next(i for i, line in enumerate(told) if line.startswith("tp=2 beats pp=2"))
    where = f"{found.at:,.4g} GB/s"
    assert told[first] == f"tp=2 beats pp=2 above {where} of pcie; below it loses."
    assert told[first + 1].startswith(f"  At {where} both take ")
    assert f"tp=2 sends {found.sides[0].sent_gb:,.3g} GB a step" in told[first + 1]
    assert "bubble (" in told[first + 1]


def test_what_turns_back_is_told_by_spans() -> None:
    spans = [
        {"low": 8, "high": 20, "winner": "X"},
        {"low": 20, "high": 30, "winner": "Y"},
    ]
    spans.append({"low": 30, "high": 90, "winner": "X"})
    found = HeadToHead.model_validate(
        {"spans": spans, "winner": "X", "loser": "Y", "at": 20, "sides": []}
    )
    comparison = real().model_copy(update={"rules": (found,)})
    assert lines(comparison, "Which plan is faster where") == (
        "X or Y: X from 8 to 20, Y from 20 to 30, X from 30 to 90.",
    )


def test_plans_go_by_what_tells_them_apart() -> None:
    long = [(f"{name},cp=1", read_plan(f"{name},cp=1")) for name, _ in PLANS[:2]]
    found = compare(mw.load(SPEC, mw.Spec), long, solve)
    assert {plan.name for plan in found.plans} == {"tp=2,cp=1", "pp=2,cp=1"}
    told = with_crossovers(
        found, vary(SPEC, "topology.levels[0].gb_s=100:900"), long, solve
    )
    text = str(compare_sections(told))
    assert "tp=2 before pp=2" in text or "pp=2 before tp=2" in text
    assert "cp=1'" not in text


def test_kinds_keep_to_the_pins_of_the_spec() -> None:
    spec = mw.load("llama2-13b-8xa100", mw.Spec, pins=["tp=[1,2,4]", "pp={max: 4}"])
    pins = kind_pins(spec, "TP + PP")
    expected = {"tp": [2, 4], "pp": {"min": 2, "max": 4}, "dp": 1, "cp": 1}
    assert pins == Pins.model_validate(expected)
    alone = kind_pins(spec, "DP/ZeRO")
    assert alone == Pins.model_validate({"tp": 1, "pp": 1, "dp": {"min": 2}, "cp": 1})


@pytest.mark.parametrize("kind", ["TP", "PP + CP", "TP + PP + DP/ZeRO + CP"])
def test_a_kind_allows_the_degrees_that_it_uses_and_the_spec_allows(kind: str) -> None:
    """Of an axis that it uses 2 and more, and of any other 1 alone."""
    asked = ["tp={min: 3, max: 8}", "pp=[1,2,4]", "dp={min: 2}"]
    spec = mw.load("llama2-13b-8xa100", mw.Spec, pins=asked)
    pins, used = kind_pins(spec, kind), kind.split(" + ")
    for axis, name in (("tp", "TP"), ("pp", "PP"), ("dp", "DP/ZeRO"), ("cp", "CP")):
        given, told = getattr(spec.pins, axis), getattr(pins, axis)
        for degree in range(1, 17):
            is_allowed = degree > 1 and (given is None or given.accepts(degree))
            is_expected = is_allowed if name in used else degree == 1
            assert told.accepts(degree) == is_expected
    assert pins.model_fields_set == {"tp", "pp", "dp", "cp"}


def test_plans_at_the_value_of_the_spec_are_not_solved_for_again() -> None:
    spec, asked = mw.load(SPEC, mw.Spec), list[float]()

    def noted(other: Spec) -> Outcome:
        asked.append(other.cluster.levels[0].gb_s)
        return solved()

    known = compare(spec, PLANS[:2], lambda _: solved())
    told = with_crossovers(known, vary(SPEC, LINK), PLANS[:2], noted)
    assert told.range is not None
    assert told.range.value == spec.cluster.levels[0].gb_s
    # Five values for each of two plans.
    assert len(asked) == 10
    assert spec.cluster.levels[0].gb_s not in asked
