"""Clauses of rules on splits, over every split of one plan, against its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import meshwright as mw
from meshwright.check.check import PlanValues, Scored, keeps, score, values_of
from meshwright.cost.job import Job, make_job
from meshwright.planner.pipeline import LinearRule, Pairs, Pipeline
from meshwright.planner.rows import Lattice
from meshwright.planner.rule_clauses import (
    PRECISION,
    Bound,
    Line,
    _whole,
    with_user_rules,
)
from meshwright.plans.columns import total
from meshwright.plans.skeletons import Split, to_plan

LAYERS = 4

BASE = {
    "model": {"preset": "gpt-1.3b", "n_layers": LAYERS},
    "cluster": {"topology": "dgx-h100", "count": 1},
    "training": {"seq_len": 2048, "global_batch": 64},
}


def job_with(*rules: str) -> Job:
    return make_job(mw.load(BASE, mw.Spec, rules=rules))


@cache
def every_split() -> list[tuple[Pairs, Scored, PlanValues]]:
    """Return the splits of two stages that recompute something, with their values."""
    spec = mw.load(BASE, mw.Spec, pins={"pp": 2, "tp": 2, "recompute": "full"})
    best, found = mw.solve(spec, by_kind=False, safety=False).best, []
    assert best is not None
    base, job = score(make_job(spec), best.plan), job_with()
    for first in range(1, LAYERS):
        layers = np.array([first, LAYERS - first])
        for again in product(*(range(n + 1) for n in layers)):
            if any(again):
                split = Split(layers, np.array(again))
                plan = to_plan(base.rows, 0, split, base.place)
                scored = score(job, plan)
                pairs = tuple(zip(layers.tolist(), again, strict=True))
                found.append((pairs, scored, values_of(scored)))
    return found


def longest(times: Any) -> list[int]:
    """Return the stages that take longest, but for rounding."""
    return np.flatnonzero(times >= times.max() * (1 - 1e-9)).tolist()


def holds(rule: LinearRule, pairs: Pairs, scored: Scored) -> bool:
    """Return whether a split keeps an inequality, by a stage that takes longest."""
    parts = zip(rule.per_layer, rule.per_recomputed, pairs, strict=True)
    needed = sum(a * n + b * r for a, b, (n, r) in parts)
    for amounts, times in (
        (rule.of_slowest, total(scored.times.seconds)),
        (rule.of_last, total(scored.times.sync)),
    ):
        if amounts:
            needed += min(amounts[e].of(*pairs[e]) for e in longest(times))
    return needed <= rule.most


Value = Callable[[PlanValues], float]

VALUES: dict[str, Value] = {
    "max(memory_gib)": lambda v: v.stages["memory_gib"].max(),
    "min(memory_gib)": lambda v: v.stages["memory_gib"].min(),
    "sum(memory_gib) / 2": lambda v: v.stages["memory_gib"].sum() / 2,
    "0.5 * max(memory_gib)": lambda v: v.stages["memory_gib"].max() / 2,
    "min(memory_gib) * 0.5": lambda v: v.stages["memory_gib"].min() / 2,
    "-2 * max(memory_gib)": lambda v: -2 * v.stages["memory_gib"].max(),
    "memory_gib[0] - memory_gib[-1]": lambda v: float(
        v.stages["memory_gib"][0] - v.stages["memory_gib"][-1]
    ),
    "max(layers) - min(layers)": lambda v: float(np.ptp(v.stages["layers"])),
    "max(layers - recompute_layers)": lambda v: float(
        (v.stages["layers"] - v.stages["recompute_layers"]).max()
    ),
    "max(-layers)": lambda v: -v.stages["layers"].min(),
    "layers[0] + pp": lambda v: v.stages["layers"][0] + 2.0,
    "max(layers[0], recompute_layers[1], 2)": lambda v: float(
        max(v.stages["layers"][0], v.stages["recompute_layers"][1], 2)
    ),
    "sum(recompute_layers[0], layers[1])": lambda v: float(
        v.stages["recompute_layers"][0] + v.stages["layers"][1]
    ),
    "step_s": lambda v: v.numbers["step_s"],
    "parts.bubble": lambda v: v.numbers["parts.bubble"],
    "parts.compute": lambda v: v.numbers["parts.compute"],
    "tokens_per_s": lambda v: v.numbers["tokens_per_s"],
    "mfu": lambda v: v.numbers["mfu"],
    "usd_per_mtoken": lambda v: v.numbers["usd_per_mtoken"],
    "max(links)": lambda v: float(v.stages["links"].max()),
}


def middle(name: str) -> float:
    """Return a number that about half of all splits are below."""
    known = sorted({round(float(VALUES[name](v)), 9) for *_, v in every_split()})
    return (known[len(known) // 2 - 1] + known[len(known) // 2]) / 2


def assert_clauses_are(text: str, wanted: Callable[[PlanValues], bool]) -> None:
    """Compare the clauses of a rule with what is wanted of each split."""
    job, (_, first, _) = job_with(text), every_split()[0]
    lattice = cast(Lattice, SimpleNamespace(place=lambda _: first.place))
    pipeline = with_user_rules(Pipeline((), LAYERS), job, lattice, first.rows)
    (rule,) = job.spec.rules
    # Of two stages, each is off by half a unit for every layer, recomputed layer and 1.
    assert 2 * LAYERS + 1 <= pipeline.rounding <= 2 * LAYERS + 2
    for clause in pipeline.clauses:
        for each in clause.rules:
            numbers = (*each.per_layer, *each.per_recomputed)
            assert LAYERS * sum(map(abs, numbers)) <= 2 * PRECISION, "sums overflow"
    for pairs, scored, values in every_split():
        is_kept = all(
            any(holds(each, pairs, scored) for each in clause.rules)
            for clause in pipeline.clauses
        )
        assert (text, pairs, is_kept) == (text, pairs, wanted(values))
        assert is_kept == keeps(rule, replace(values, spec=job.spec))


@pytest.mark.parametrize("name", VALUES)
def test_clauses_keep_the_splits_that_a_rule_keeps(name: str) -> None:
    value, most = VALUES[name], middle(name)
    assert_clauses_are(f"{name} <= {most}", lambda v: value(v) <= most)
    assert_clauses_are(f"{name} > {most}", lambda v: value(v) > most)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("layers[0] == 2", lambda n, r: n[0] == 2),
        ("layers[0] != 2", lambda n, r: n[0] != 2),
        ("layers[0] in (1, 3)", lambda n, r: n[0] in (1, 3)),
        ("layers[0] not in (1, 3)", lambda n, r: n[0] == 2),
        (
            "layers[0] < 2 or max(recompute_layers) < 2",
            lambda n, r: n[0] < 2 or max(r) < 2,
        ),
        (
            "not (layers[0] < 3 and sum(recompute_layers) > 1)",
            lambda n, r: n[0] > 2 or sum(r) < 2,
        ),
        ("1 < layers[-1] <= 2", lambda n, r: n[1] == 2),
        ("layers[0] > 2 or tp == 4", lambda n, r: n[0] > 2),
        ("0.37 * layers[0] <= 0.41 * layers[1]", lambda n, r: n[0] <= n[1]),
    ],
)
def test_clauses_join_as_rules_do(
    text: str, wanted: Callable[[list[int], list[int]], bool]
) -> None:
    def is_kept(values: PlanValues) -> bool:
        layers, again = values.stages["layers"], values.stages["recompute_layers"]
        return wanted(layers.tolist(), again.tolist())

    assert_clauses_are(text, is_kept)


def test_what_is_no_line_is_left_to_the_checker() -> None:
    assert_clauses_are("max(layers) * max(layers) > 0", lambda _: True)
    assert_clauses_are("parts.bubble / step_s > 0", lambda _: True)
    assert_clauses_are("max(2 * links) >= 0", lambda _: True)
    # 2 x 3, 2 x 2 and 3 x 1: the first factor is no constant.
    assert_clauses_are("max(2, layers[0]) * layers[1] >= 3", lambda _: True)


STAGES = 3


def drawn_line(random: np.random.Generator, *, is_whole: bool) -> Line:
    """Return a line whose numbers are of very unlike sizes, or whole and few."""

    def numbers(*shape: int) -> Any:
        if is_whole:
            return random.integers(-3, 4, shape).astype(float)
        return random.normal(size=shape) * 10.0 ** random.integers(-6, 6, shape)

    none = np.zeros((3, STAGES))
    beside = (none, none) if is_whole else (numbers(3, STAGES), numbers(3, STAGES))
    return Line(float(numbers()), numbers(2, STAGES), *beside)


def exact_value(line: Line, pairs: Pairs, slowest: int, last: int) -> Fraction:
    """Return the value of a line at a split, without rounding."""
    total = Fraction(line.fixed)
    for e, (n, r) in enumerate(pairs):
        total += Fraction(line.everywhere[0, e]) * n
        total += Fraction(line.everywhere[1, e]) * r
    for amounts, e in ((line.slowest, slowest), (line.last, last)):
        fixed, per_layer, per_recomputed = map(Fraction, amounts[:, e])
        total += fixed + per_layer * pairs[e][0] + per_recomputed * pairs[e][1]
    return total


def whole_value(rule: LinearRule, pairs: Pairs, slowest: int, last: int) -> int:
    parts = zip(rule.per_layer, rule.per_recomputed, pairs, strict=True)
    needed = sum(a * n + b * r for a, b, (n, r) in parts)
    for amounts, e in ((rule.of_slowest, slowest), (rule.of_last, last)):
        needed += amounts[e].of(*pairs[e]) if amounts else 0
    return needed


@pytest.mark.parametrize("seed", range(60))
def test_whole_numbers_lose_no_split_that_floats_may_take_for_one(seed: int) -> None:
    """A rule is kept at 0 and up to a few parts in 10^12 above, and not much above.

    Of whole numbers it is exact.
    """
    random, is_whole = np.random.default_rng(seed), seed % 3 == 0
    line = drawn_line(random, is_whole=is_whole)
    layers = int(random.integers(STAGES, 40))
    pairs = tuple((int(random.integers(1, layers)), 1) for _ in range(STAGES))
    slowest, last = random.integers(0, STAGES, 2).tolist()
    value = exact_value(line, pairs, slowest, last)
    size = abs(line.fixed) + layers * float(np.abs(line.everywhere).sum())
    for amounts in (line.slowest, line.last):
        size += float(np.abs(amounts[0]).sum() + layers * np.abs(amounts[1:]).sum())
    for share, is_kept in ((-1e-3, True), (0, True), (4e-12, True), (1e-10, False)):
        if is_whole and share not in (-1e-3, 0):
            continue
        # The line is moved so that it is so far above 0.
        fixed = Fraction(line.fixed) - value + Fraction(share * size)
        moved = replace(line, fixed=float(fixed))
        rule = _whole(Bound(moved), layers)
        assert (whole_value(rule, pairs, slowest, last) <= rule.most) is is_kept
    if is_whole:
        for more, is_strict, is_kept in (
            (0, True, False),
            (-1, True, True),
            (1, False, False),
        ):
            moved = replace(line, fixed=float(Fraction(line.fixed) - value + more))
            rule = _whole(Bound(moved, is_strict), layers)
            assert (whole_value(rule, pairs, slowest, last) <= rule.most) is is_kept
