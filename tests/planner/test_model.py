"""The model of named decisions and the search on it, against plain loops over rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.deadline import NEVER, Deadline
from meshwright.planner.model import (
    ANY_SPLIT,
    CONSTRAINTS,
    DEMANDS,
    DOUBTED,
    ENDLESS_TICKS,
    STEP,
    Choice,
    Demand,
    PlanModel,
    Table,
)
from meshwright.planner.pipeline import Pairs, Proof
from meshwright.planner.prove import Search

DECISIONS = ("tp", "pp", "zero")

CRITERIA = ("techniques", "uneven_stages", "offload", "partial_recompute")


def random_table(seed: int, count: int) -> Table:
    random = Random(seed)

    def column(*values: int) -> np.ndarray:
        return np.array([random.choice(values) for _ in range(count)], dtype=np.int64)

    least = column(10, 11, 12, 13, 14)
    more = {demand: column(0, 0, 1, 3, ENDLESS_TICKS) for demand in DEMANDS[1:]}
    return Table(
        decisions={name: column(1, 2, 4, 8) for name in DECISIONS},
        least_ticks={ANY_SPLIT: least}
        | {one: np.minimum(least + add, ENDLESS_TICKS) for one, add in more.items()},
        most_ticks=least + 50,
        memory={"first": column(5, 6, 9), "last": column(4, 8, 9)},
        capacity={"first": column(8), "last": column(8, 9)},
        may_keep={"rules.a": column(0, 1, 1, 1).astype(bool)},
        criteria={"techniques": column(0, 1, 2), "offload": column(0, 1)},
    )


def is_allowed(table: Table, row: int) -> bool:
    fits = all(
        table.memory[name][row] <= table.capacity[name][row] for name in table.memory
    )
    return fits and all(may[row] for may in table.may_keep.values())


class TableSplits:
    """Splits of rows that take a little more than their bounds, or do not exist."""

    def __init__(self, table: Table, seed: int) -> None:
        random = Random(seed)
        self.ticks: dict[tuple[int, Demand], int] = {}
        for demand in DEMANDS:
            for row, least in enumerate(table.least_ticks[demand].tolist()):
                # With more asked of a split, it takes no less.
                weaker = (one for one in DEMANDS if np.less_equal(one, demand).all())
                known = [self.ticks.get((row, one), 0) for one in weaker]
                ticks = max(least + random.choice((0, 0, 1, 3)), *known)
                self.ticks[row, demand] = ticks
        self.none = {row for row in range(len(table)) if random.random() < 0.2}
        self.open = {row for row in range(len(table)) if random.random() < 0.1}
        self.asked: list[tuple[int, Demand, int]] = []

    def prove(self, row: int, demand: Demand, below: int) -> Proof:
        self.asked.append((row, demand, below))
        ticks = self.ticks[row, demand]
        if row in self.none:
            return Proof("infeasible", (), 0, np.inf)
        if row in self.open:
            return Proof("unknown", (), 0, 10)
        if ticks >= below:
            return Proof("slower", (), 0, below)
        return Proof("optimal", (), ticks, ticks)

    def unique(self, _row: int, _demand: Demand, proof: Proof) -> Proof:
        return replace(proof, split=((1, 0),)) if proof.status == "optimal" else proof

    def constructed(self, _row: int) -> Pairs:
        return ((2, 0),)


def search_of(
    table: Table,
    splits: TableSplits,
    upper: np.ndarray | None = None,
    deadline: Deadline = NEVER,
) -> Search:
    left = np.array([is_allowed(table, row) for row in range(len(table))])
    none = np.full(len(table), ENDLESS_TICKS)
    return Search(table, none if upper is None else upper, left, splits, deadline)


def test_a_choice_follows_a_constraint_on_decisions() -> None:
    table = random_table(3, 60)
    model = PlanModel(table)
    model.cp.add(model["tp"] * 2 <= model["pp"])
    model.cp.add(model["zero"] != 1)
    values = table.decisions
    allowed = [
        row
        for row in range(60)
        if is_allowed(table, row)
        and values["tp"][row] * 2 <= values["pp"][row]
        and values["zero"][row] != 1
    ]
    least = table.least_ticks[ANY_SPLIT]
    choice = model.least(STEP, 100)
    assert choice is not None
    assert choice.row == min(allowed, key=lambda row: (least[row], row))
    assert choice.price == least[choice.row]


def test_nothing_is_chosen_beyond_a_step_time_or_where_all_is_left_out() -> None:
    table = random_table(1, 20)
    model = PlanModel(table)
    choice = model.least(STEP, 100)
    assert choice is not None
    assert model.least(STEP, choice.price) == choice
    assert model.least(STEP, choice.price - 1) is None
    model.leave_out(np.arange(20))
    assert model.least(STEP, 100) is None


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        # Each column lets two of three rows pass, and the fastest one is not of them.
        ({"memory": {"first": [9, 8, 8]}, "capacity": {"first": [8, 8, 8]}}, [1, 2]),
        ({"may_keep": {"rules.a": [False, True, True]}}, [1, 2]),
        ({"pinned": {"tp": [2, 4]}}, [1, 2]),
        # Busy for 6 of 11 ticks is more than half; the row may take longer, up to 12.
        ({"busy_ticks": {"nic": [9, 6, 6]}, "link_share": 0.5}, [1, 2]),
    ],
)
def test_each_constraint_leaves_rows_out(
    change: dict[str, object], rows: list[int]
) -> None:
    def columns(this: object) -> object:
        if isinstance(this, dict):
            return {name: np.array(values) for name, values in this.items()}
        return this

    table = Table(
        decisions={"tp": np.array([1, 2, 4])},
        least_ticks={ANY_SPLIT: np.array([10, 12, 11])},
        most_ticks=np.array([16, 13, 12]),
    )
    assert PlanModel(table).least(STEP, 100) == (0, ANY_SPLIT, 10)
    table = replace(table, **{k: columns(v) for k, v in change.items()})  # type: ignore[arg-type]
    model, chosen = PlanModel(table), []
    while choice := model.least(STEP, 100):
        chosen.append(choice.row)
        model.leave_out(np.array([choice.row]))
    assert sorted(chosen) == rows


def test_a_step_lasts_until_its_links_hold() -> None:
    """Half of a step is 7 ticks of the link: it takes 14 though splits take 10."""
    table = Table(
        decisions={"tp": np.array([1])},
        least_ticks={ANY_SPLIT: np.array([10])},
        most_ticks=np.array([20]),
        busy_ticks={"nic": np.array([7])},
        link_share=0.5,
    )
    assert PlanModel(table).least(STEP, 100) == (0, ANY_SPLIT, 14)


def test_sums_over_many_rows_stay_within_64_bits() -> None:
    """Most rows have no equal stages, and none a limit on how long it may take."""
    rows, least = 20_000, np.arange(20_000) + 10**10
    table = Table(
        decisions={"tp": least % 7},
        least_ticks={
            ANY_SPLIT: least,
            Demand(True): np.full(rows, ENDLESS_TICKS),
        },
        most_ticks=np.full(rows, ENDLESS_TICKS),
    )
    assert PlanModel(table).least(STEP, 10**11) == (0, ANY_SPLIT, 10**10)


def test_the_simplest_of_many_rows_stays_within_64_bits() -> None:
    """Levels fit into one whole number, but not the sum of two thousand of them."""
    rows, random = 2_000, Random(1)

    def column(first: int, end: int) -> np.ndarray:
        return np.array([random.randrange(first, end) for _ in range(rows)])

    least, sizes = column(2 * 10**7, 4 * 10**7), (60, *[2] * 8)
    table = Table(
        decisions={},
        least_ticks={ANY_SPLIT: least},
        most_ticks=least + 10**7,
        percents=column(100, 107),
        criteria={f"level{i}": column(0, size) for i, size in enumerate(sizes)},
    )
    price = least * table.scale(DOUBTED)
    levels = [*table.criteria.values(), price, np.arange(rows)]
    first = min(range(rows), key=lambda row: [int(level[row]) for level in levels])
    choice = PlanModel(table).simplest([*table.criteria], 10**10)
    assert choice == (first, ANY_SPLIT, price[first])


def test_every_constraint_says_what_it_ensures() -> None:
    for constraint in CONSTRAINTS:
        assert constraint.__doc__
        assert constraint.__doc__.startswith(("Ensure", "Let"))


@given(st.integers(0, 2**32), st.integers(1, 12), st.booleans())
def test_the_fastest_row_is_that_of_a_loop(
    seed: int, count: int, knows_plans: bool
) -> None:
    table = random_table(seed, count)
    splits = TableSplits(table, seed + 1)
    splits.open = set()
    ticks = {
        row: splits.ticks[row, ANY_SPLIT]
        for row in range(count)
        if is_allowed(table, row) and row not in splits.none
    }
    upper = np.full(count, ENDLESS_TICKS)
    if knows_plans:
        upper[list(ticks)] = [tick + row % 2 for row, tick in ticks.items()]
    search = search_of(table, splits, upper)
    for row in sorted(ticks, key=lambda row: (ticks[row], row)):
        proof = search.fastest()
        assert (proof.status, proof.row, proof.ticks) == ("optimal", row, ticks[row])
        search.leave_out(np.array([row]))
    assert search.fastest().status == "infeasible"
    assert len(set(splits.asked)) == len(splits.asked)


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_the_simplest_row_is_that_of_a_loop(seed: int, count: int) -> None:
    table = random_table(seed, count)
    splits = TableSplits(table, seed + 1)
    splits.open = set()
    most = 13

    def key(row: int, demand: Demand, ticks: int) -> tuple[int, ...]:
        of_split = {
            "uneven_stages": int(not demand.equal_stages),
            "partial_recompute": int(not demand.whole_recompute),
        }
        counts = (
            of_split[name] if name in of_split else int(table.criteria[name][row])
            for name in CRITERIA
        )
        return (*counts, ticks, row)

    keys = {
        (row, demand): key(row, demand, ticks)
        for (row, demand), ticks in splits.ticks.items()
        if is_allowed(table, row) and row not in splits.none and ticks <= most
    }
    proof, is_proven = search_of(table, splits).simplest(CRITERIA, most)
    assert is_proven
    asked = [(row, demand) for row, demand, _ in splits.asked]
    for number, found in enumerate(asked):
        # Nothing is asked any more that comes after a plan that is known.
        for row, demand in asked[number + 1 :] if found in keys else ():
            least = int(table.least_ticks[demand][row])
            assert key(row, demand, least) < keys[found]
    if not keys:
        assert not proof.has_plan
        return
    *_, ticks, row = min(keys.values())
    assert (proof.row, proof.ticks) == (row, ticks)


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_what_is_left_open_is_not_claimed(seed: int, count: int) -> None:
    table = random_table(seed, count)
    splits = TableSplits(table, seed + 1)
    allowed = [row for row in range(count) if is_allowed(table, row)]
    possible = [row for row in allowed if row not in splits.none]
    least = min((splits.ticks[row, ANY_SPLIT] for row in possible), default=np.inf)
    proof = search_of(table, splits).fastest()
    assert proof.bound <= least
    if proof.status == "optimal":
        assert proof.ticks == least
    if proof.status == "infeasible":
        assert not possible


def test_without_time_the_constructed_split_is_the_answer() -> None:
    table = random_table(4, 12)
    splits = TableSplits(table, 5)
    left = np.array([is_allowed(table, row) for row in range(12)])
    upper = table.least_ticks[ANY_SPLIT] + 7
    search = Search(table, upper, left, splits, Deadline(0.0))
    proof = search.fastest()
    assert proof.status == "feasible"
    assert (proof.ticks, proof.split) == (upper[left].min(), ((2, 0),))
    assert proof.bound == table.least_ticks[ANY_SPLIT][left].min()
    some = np.arange(12) % 2 == 1
    assert search.fastest(some).ticks == upper[left & some].min() > proof.ticks
    assert not splits.asked


def test_the_recommended_row_is_that_of_a_loop_with_few_proofs() -> None:
    """The price of a row is its ticks, times the percents of its doubt."""
    asked = proven = 0
    for seed in range(120):
        random = Random(seed)
        table = random_table(seed, random.randint(1, 12))
        count, least = len(table), table.least_ticks[ANY_SPLIT]
        percents = np.array([random.choice([100, 105, 110]) for _ in range(count)])
        table = replace(table, percents=percents)
        splits = TableSplits(table, seed + 1)
        if seed % 2:
            splits.open = set()
        allowed = [row for row in range(count) if is_allowed(table, row)]
        ticks = {
            row: splits.ticks[row, ANY_SPLIT]
            for row in allowed
            if row not in splits.none
        }
        upper = np.full(count, ENDLESS_TICKS)
        some = [row for row in ticks if random.random() < 0.5]
        upper[some] = [ticks[row] + random.choice([0, 2]) for row in some]
        among = np.array([random.random() < 0.8 for _ in range(count)])
        search = search_of(table, splits, upper)
        proof = search.recommended(among)
        asked += len(splits.asked)
        prices = {row: n * int(percents[row]) for row, n in ticks.items() if among[row]}
        best = min(prices.values(), default=np.inf)
        if proof.status == "infeasible":
            assert not prices
        elif not proof.has_plan:
            assert proof.bound <= best
        else:
            price = search.price(proof)
            assert price == proof.ticks * int(percents[proof.row])
            assert among[proof.row]
            assert proof.bound * int(percents[proof.row]) <= best <= price
        if proof.status == "optimal":
            proven += 1
            assert price == best
            first = min(row for row, one in prices.items() if one == best)
            assert proof.row == first
            assert proof.bound == proof.ticks
        if not splits.open:
            assert proof.status in ("optimal", "infeasible")
        assert all(least[row] < below for row, _, below in splits.asked)
    assert (proven, asked) == (85, 126)


def test_the_fastest_and_the_simplest_rows_take_few_proofs_and_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = Counter[str]()
    for name in ("least", "simplest"):
        monkeypatch.setattr(PlanModel, name, counting(counts, name))
    for seed in range(80):
        random = Random(seed)
        table = random_table(seed, random.randint(1, 12))
        splits = TableSplits(table, seed + 1)
        upper = np.full(len(table), ENDLESS_TICKS)
        for row in range(len(table)):
            if row not in splits.none and random.random() < 0.5:
                upper[row] = splits.ticks[row, ANY_SPLIT] + random.choice([0, 2])
        search = search_of(table, splits, upper)
        proof = search.fastest()
        search.simplest(CRITERIA, 13)
        if proof.has_plan:
            search.leave_out(np.array([proof.row]))
            search.fastest()
        counts["proofs"] += len(splits.asked)
    assert counts == Counter({"proofs": 239, "least": 211, "simplest": 137})


def counting(counts: Counter[str], name: str) -> Callable[..., Choice | None]:
    """Return a method of models that counts how often it is called."""
    method = getattr(PlanModel, name)

    def counted(*given: Any) -> Choice | None:
        counts[name] += 1
        found: Choice | None = method(*given)
        return found

    return counted


class PassesAfter(Deadline):
    """A deadline that has passed once it was asked so many times."""

    def __init__(self, asks: int) -> None:
        super().__init__()
        self.left = asks

    @property
    def has_passed(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_what_is_known_when_the_time_is_up_is_told_and_no_more() -> None:
    told = Counter[str]()
    for seed in range(120):
        random = Random(seed)
        table = random_table(seed, random.randint(2, 12))
        splits = TableSplits(table, seed + 1)
        splits.open = set()
        ticks = {
            row: splits.ticks[row, ANY_SPLIT]
            for row in range(len(table))
            if is_allowed(table, row) and row not in splits.none
        }
        upper = np.full(len(table), ENDLESS_TICKS)
        for row, tick in ticks.items():
            if random.random() < 0.5:
                upper[row] = tick + random.choice([0, 2])
        search = search_of(table, splits, upper, PassesAfter(random.randint(0, 3)))
        proof = search.fastest()
        least = min(ticks.values(), default=np.inf)
        told[proof.status] += 1
        assert proof.bound <= least
        if proof.has_plan:
            built = int(upper[[*ticks]].min())
            assert least <= proof.ticks <= built
            assert (proof.status == "optimal") == (proof.bound == proof.ticks)
        else:
            assert proof.status == "unknown" or not ticks
            assert (upper == ENDLESS_TICKS).all()
    assert {*told} == {"optimal", "feasible", "unknown", "infeasible"}
